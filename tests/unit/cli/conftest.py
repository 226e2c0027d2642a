"""The API server and the command line of these tests."""

from support.recorded_api_fixtures import _server, api, kubectl  # noqa: F401 - pytest finds them here
