# ruff: noqa
class Router:
    def __init__(self):
        self._routes = {}
    def route(self, key):
        def decorator(fn):
            self._routes[key] = fn
            return fn
        return decorator
    async def dispatch(self, key, payload):
        await self._routes[key](payload)
router = Router()
