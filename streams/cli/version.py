"""Which version is installed."""

from importlib.metadata import PackageNotFoundError, version


def installed_version(otherwise: str) -> str:
    """The version of the installed package; `otherwise` for a checkout that is not installed."""
    try:
        return version("claimlog")
    except PackageNotFoundError:
        return otherwise
