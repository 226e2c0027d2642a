"""`python -m nodedevices_kubectl`."""

from nodedevices_kubectl.main import main

if __name__ == "__main__":
    main()
