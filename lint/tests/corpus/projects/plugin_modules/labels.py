# ruff: noqa
async def show(member: str):
    print(member)


def install(broker):
    broker.register_task(show, task_name="show")
