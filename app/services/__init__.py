"""Operations of the management plane: they check intent, change records in one transaction, and assemble answers.

This package does not know HTTP. It raises only the errors of `app.errors`.
"""
