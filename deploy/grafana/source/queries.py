"""PromQL queries. Two managers may report a node while the leader changes, so a query takes the maximum of a node's
series before any sum."""

NODE, TENANT = 'node=~"$node"', 'tenant=~"$tenant"'


def of(metric: str, by: str, only: str = NODE) -> str:
    """Return the current value of a gauge."""
    return f"max by ({by}) ({metric}{{{only}}})"


def per_second(metric: str, by: str, only: str = NODE) -> str:
    return f"max by ({by}) (rate({metric}{{{only}}}[$__rate_interval]))"


def total(expr: str, by: str = "") -> str:
    return f"sum by ({by}) ({expr})" if by else f"sum({expr})"


def ratio(part: str, whole: str) -> str:
    return f"{part} / ({whole} > 0)"


def quantile(share: float, metric: str, by: str, only: str = NODE) -> str:
    every = per_second(f"{metric}_bucket", f"node, {by}, le" if "node" not in by else f"{by}, le", only)
    return f"histogram_quantile({share}, sum by ({by}, le) ({every}))"


def managers_quantile(share: float, metric: str, by: str, only: str = "") -> str:
    """Return a quantile of a histogram that each manager reports about itself."""
    chosen = f"{metric}_bucket{{{only}}}" if only else f"{metric}_bucket"
    return f"histogram_quantile({share}, sum by ({by}, le) (rate({chosen}[$__rate_interval])))"
