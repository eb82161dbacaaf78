"""Orders, stock and shipments."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0001", None


def upgrade() -> None:
    op.create_table(
        "orders",
        sa.Column("id", sa.String(), primary_key=True),
        sa.Column("customer", sa.String(), nullable=False),
        sa.Column("item", sa.String(), nullable=False),
        sa.Column("amount", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("charge", sa.String()),
        sa.Column("refund", sa.String()),
    )
    stock = op.create_table(
        "stock",
        sa.Column("item", sa.String(), primary_key=True),
        sa.Column("pieces", sa.Integer(), nullable=False),
    )
    op.create_table(
        "shipments",
        sa.Column("number", sa.Integer(), primary_key=True),
        sa.Column("order_id", sa.String(), nullable=False),
    )
    op.bulk_insert(stock, [{"item": "chair", "pieces": 10_000}])


def downgrade() -> None:
    for table in ("shipments", "stock", "orders"):
        op.drop_table(table)
