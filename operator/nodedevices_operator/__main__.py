"""`python -m nodedevices_operator`, the same as `nodedevices-operator`."""

import sys

from nodedevices_operator.main import main

sys.exit(main())
