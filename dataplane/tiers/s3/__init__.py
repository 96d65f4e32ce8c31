"""The tier `s3`: blocks in object storage, one object per block, shared by the nodes of a cluster.

obstore makes the requests, in a separate process. It supports S3 and compatible stores, Google Cloud Storage, and Azure
Blob Storage.

    parameters      the record's parameters
    faults          the meaning of a failed request, in a sentence without text of the server
    messages        messages between the tier and the process
    worker          the code of the process: makes requests, with a limit on memory
    errors          translates errors of obstore to faults
    worker_process  starts the process and exchanges messages with it
    client          sends requests; reads credentials when the bucket is opened
    tier            the interface of a tier
"""

from importlib.util import find_spec

from dataplane.tiers.registry import TierType
from dataplane.tiers.s3.parameters import S3Parameters

try:
    from dataplane.tiers.codecs.decoding import CODECS
    from dataplane.tiers.s3.tier import S3Tier
except ModuleNotFoundError as error:
    raise ImportError(f"{error}; pip install 'larder[s3]'") from None
if find_spec("obstore") is None:
    raise ImportError("No module named 'obstore'; pip install 'larder[s3]'")

TYPE = TierType(S3Parameters, S3Tier, shared=True, codecs=CODECS)
