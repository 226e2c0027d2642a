"""The command kubectl-nodedevices, also as `python -m nodedevices_kubectl`: loads the rest, and runs it."""

from nodedevices_common import loading


def main() -> None:
    with loading.needing("kubectl-nodedevices", "cli"):
        from nodedevices_kubectl.main import main as run  # noqa: PLC0415  an installation of the agent lacks click
    run()


def complete() -> None:
    with loading.needing("kubectl_complete-nodedevices", "cli"):
        from nodedevices_kubectl.main import complete as run  # noqa: PLC0415
    run()


if __name__ == "__main__":
    main()
