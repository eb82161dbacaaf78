# ruff: noqa
# expect file: clean
import oracledb
from celery import shared_task


@shared_task
def stock(sku, level):
    with oracledb.connect("db") as conn, conn.cursor() as cur:
        cur.execute(
            "MERGE INTO stock s USING (SELECT :sku AS sku FROM dual) d ON (s.sku = d.sku) "
            "WHEN MATCHED THEN UPDATE SET s.qty = :q WHEN NOT MATCHED THEN INSERT (sku, qty) VALUES (:sku, :q)",
            {"sku": sku, "q": level},
        )
        conn.commit()
