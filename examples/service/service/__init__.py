"""An order service on async SQLAlchemy: no order is lost, and none is charged, shipped or mailed about twice."""
