"""`python -m nodedevices_plugin` is nodedevices-agent."""

from nodedevices_plugin.agent import main

raise SystemExit(main())
