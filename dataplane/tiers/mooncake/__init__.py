"""The tier `mooncake`: blocks in Mooncake Store, the memory of many nodes behind one `mooncake_master`.

The client comes from the wheel `mooncake-transfer-engine-non-cuda`, or `mooncake-transfer-engine` with CUDA. Larder
does not require the wheel, and imports it when a tier is opened.

    parameters   the record's parameters
    tier         the interface of a tier
"""

from dataplane.tiers.mooncake.parameters import MooncakeParameters
from dataplane.tiers.registry import TierContext, TierType
from dataplane.tiers.tier import Tier, TierError


def _open(parameters: MooncakeParameters, context: TierContext) -> Tier:
    try:
        from dataplane.tiers.mooncake.tier import MooncakeTier
    except ImportError as error:
        raise TierError(
            f"{error}; pip install mooncake-transfer-engine-non-cuda, and install Debian's libibverbs1, libcurl4 and "
            "libnuma1"
        ) from None
    return MooncakeTier(parameters, context)


TYPE = TierType(MooncakeParameters, _open, shared=True)
