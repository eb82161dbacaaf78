# ruff: noqa
# expect file: clean
from fastapi import APIRouter, Depends, Request
from sqlalchemy.orm import Session
from deps import get_db
import crud
router = APIRouter()
@router.post("/webhooks/paystack")
async def paystack(request: Request, db: Session = Depends(get_db)):
    event = await request.json()
    if not crud.record_event(db, event["data"]["id"]):
        return {"status": "duplicate"}
    crud.credit(db, event["data"]["customer"]["email"], event["data"]["amount"])
    db.commit()
    return {"status": "ok"}
