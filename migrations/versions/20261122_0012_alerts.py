"""Alerts that Alertmanager and Grafana send, and audit entries by time.

Revision: 0012; after: 0010.
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0010"
branch_labels = None
depends_on = None

_EMPTY = sa.text("''")


def upgrade() -> None:
    op.create_table(
        "alerts",
        sa.Column("fingerprint", sa.String(64), nullable=False),
        *(
            sa.Column(name, sa.String(128), nullable=False, server_default=_EMPTY)
            for name in ("alertname", "severity", "state", "tenant", "node")
        ),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("annotations", sa.JSON(), nullable=False),
        sa.Column("generator_url", sa.Text(), nullable=False, server_default=_EMPTY),
        sa.Column("starts_at", sa.Double(), nullable=False, server_default="0"),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("received_at", sa.Double(), nullable=False, server_default="0"),
        sa.Column("expires_at", sa.Double(), nullable=False, server_default="0"),
        sa.PrimaryKeyConstraint("fingerprint", name="pk_alerts"),
    )
    op.create_index("ix_alerts_state", "alerts", ["state"])
    op.create_index("ix_audit_at", "audit", ["at"])


def downgrade() -> None:
    op.drop_index("ix_audit_at", "audit")
    op.drop_index("ix_alerts_state", "alerts")
    op.drop_table("alerts")
