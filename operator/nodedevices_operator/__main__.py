"""`nodedevices-operator` and `python -m nodedevices_operator`. The garbage collector rests while main.py is loaded."""

from nodedevices_common import loading


def main() -> int:
    with loading.quickly(), loading.needing("nodedevices-operator", "operator"):
        from nodedevices_operator.main import main as run  # noqa: PLC0415  see above
    return run()


if __name__ == "__main__":
    raise SystemExit(main())
