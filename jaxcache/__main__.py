"""``python -m jaxcache``."""

from jaxcache.cli.main import main

if __name__ == "__main__":
    main()
