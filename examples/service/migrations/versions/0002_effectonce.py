"""The tables of effectonce, as `effectonce migrate --store URL --sql` has printed them."""

from pathlib import Path

import sqlparse
from alembic import op

revision, down_revision = "0002", "0001"


def upgrade() -> None:
    script = Path(__file__).with_name(f"effectonce_1.{op.get_bind().dialect.name}.sql").read_text()
    for statement in sqlparse.split(script):  # asyncpg takes one at a time
        op.execute(statement)


def downgrade() -> None:
    """The records say what was done. Drop the tables only when no consumer of theirs runs any more."""
