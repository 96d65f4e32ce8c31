"""All tables, for migrations: importing this module fills `metadata`."""

from app.store.access import audit, tokens
from app.store.base import identity
from app.store.base.declarative import Base
from app.store.fleet import enrolment, held_pins, managers, nodes, pushes
from app.store.records import ceilings, generations, pins, policies, prefill_rates, quotas, tiers, tokenizers
from app.store.usage import ledger
from app.store.views import alerts, events, series

metadata = Base.metadata
