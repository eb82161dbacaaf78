"""A plugin of pytest that loads the project's apps, before the cases import their models."""

import django
from django.test.utils import setup_test_environment

django.setup()
setup_test_environment()
