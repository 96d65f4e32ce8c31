"""Generate the dashboards, and Grafana's alert rules from those of Prometheus.

    python deploy/grafana/build.py [--larder-url URL] [FOLDER]

`--larder-url` is the address at which people reach Larder, which serves the runbook. It is written into the links of
both sets of rules. Edit `source` and `deploy/prometheus/larder.rules.yml`, never the generated files.
"""

import argparse
import json
import re
from pathlib import Path

import yaml
from source.alert_rules import RULES, alert_rules
from source.dashboard import NOTE, dashboard
from source.engines import engines
from source.fleet import fleet
from source.node import node
from source.pushes import pushes
from source.tenant import tenant

HERE = Path(__file__).parent


def files() -> dict[str, str]:
    """Return the generated files by path relative to this folder."""
    made = {
        f"dashboards/{each.name}.json": json.dumps(dashboard(each), indent=1, ensure_ascii=False) + "\n"
        for each in (fleet(), node(), tenant(), pushes(), engines())
    }
    rules = yaml.safe_dump(alert_rules(), sort_keys=False, width=120, allow_unicode=True)
    comment = "# Prometheus' rules, evaluated by Grafana. LARDER_GRAFANA_ALERTS_PAUSED must be `true` or `false`.\n"
    made["provisioning/alerting/rules.yml"] = f"# {NOTE}\n{comment}{rules}"
    return made


def link_runbook(larder_url: str) -> None:
    """Make every `runbook_url` of Prometheus' rules lead to the runbook that this Larder serves."""
    text = RULES.read_text(encoding="utf-8")
    link = f"runbook_url: {larder_url.rstrip('/')}/docs/operate/"
    RULES.write_text(re.sub(r"runbook_url: \S*docs/operate/", lambda _: link, text), encoding="utf-8")


def absolute(url: str) -> str:
    if not re.fullmatch(r"https?://[\w.:\[\]/~-]+", url):
        raise argparse.ArgumentTypeError(f"expected a URL such as https://larder.example, got {url!r}")
    return url


def main() -> None:
    parser = argparse.ArgumentParser(description="Generate Grafana's dashboards and alert rules.")
    parser.add_argument("--larder-url", type=absolute, metavar="URL")
    parser.add_argument("folder", type=Path, nargs="?", default=HERE)
    arguments = parser.parse_args()
    if arguments.larder_url:
        link_runbook(arguments.larder_url)
    for path, text in files().items():
        (arguments.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (arguments.folder / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
