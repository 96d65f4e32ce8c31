"""The newest change of each type has its trace, so that whichever manager pushes it continues the trace.

Revision: 0017; after: 0016.
"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("generations", sa.Column("traceparent", sa.String(128), nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("generations", "traceparent")
