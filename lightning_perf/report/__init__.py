"""Analysis -> what people read: console, logger scalars."""
