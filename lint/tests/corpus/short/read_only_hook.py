# ruff: noqa
# expect file: clean
from fastapi import APIRouter
router = APIRouter()
@router.post("/webhooks/x")
async def h(p: dict):
    print(p)
    return {"ok": True}
