"""Settings, from environment variables such as ``ORDERS_BROKER``."""

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="ORDERS_")

    broker: str = "embedded:data"
    """``embedded:`` and a folder for a broker of its own, or servers: ``127.0.0.1:9876``."""
    database_url: str = Field(
        default="sqlite+aiosqlite:///orders.db", validation_alias="DATABASE_URL"
    )
    """Or ``postgresql+asyncpg://user:password@host/name``."""
    remind_after_s: int = 3600
    """Seconds from the bill to the reminder."""


settings = Settings()
