# ruff: noqa
import braintree
class PaymentGateway:
    def __init__(self, merchant, public, private):
        self.gateway = braintree.BraintreeGateway(braintree.Configuration(merchant_id=merchant, public_key=public, private_key=private))
    def capture(self, payment_id):
        result = self.gateway.transaction.sale({"amount": "10.00", "payment_method_token": payment_id})
        if not result.is_success:
            raise RuntimeError(result.message)
