"""The demo: Larder with a synthetic load (`command`), a local S3 server as a tier (`s3`), and incidents (`incidents`).

It is a user of the management plane like any other: it starts `larder up` as a child and uses the REST API. Nothing
imports it; `larder demo` runs `python -m app.demo`.
"""
