"""Django: an app with migrations, system checks and an admin page; a middleware, decorators and a mixin for views.

    INSTALLED_APPS = [..., "effectonce.integrations.django"]
    MIDDLEWARE = [
        ...,
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "effectonce.integrations.django.IdempotencyMiddleware",  # after whatever authenticates and limits
    ]
    EFFECTONCE = {
        "STORE": "default",  # the database of that alias; or a URL, a `Store`, the dotted path of one
        "SERVICE": "shop",
        "PRINCIPAL": "effectonce.integrations.django.user_id",
    }

Or for one view, sync or async::

    idempotent = Idempotency(get_store(), principal=user_id, required=True)

    @idempotent
    def charge(request): ...

    class Charges(IdempotentView, APIView):  # REST framework: after its authentication, permissions and throttles
        idempotency = Idempotency(get_store(), principal=lambda request: request.user.pk)

`transactional` commits the claim, what a view writes, and its response in one transaction. The middleware, the
decorators and the mixin need no app; what the app adds is in `apps`.
"""

from .middleware import IdempotencyMiddleware, user_id
from .options import get_store
from .transactions import transactional
from .views import Idempotency, IdempotentView

__all__ = ["Idempotency", "IdempotencyMiddleware", "IdempotentView", "get_store", "transactional", "user_id"]
