"""Code that both planes share, other than protocols: the settings reader, units, labels, secret files, the log writer.

Imports no other package of Larder.
"""
