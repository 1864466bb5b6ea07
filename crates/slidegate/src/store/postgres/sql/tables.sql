CREATE SCHEMA IF NOT EXISTS @schema@;

CREATE TABLE IF NOT EXISTS @schema@.version (
  version int NOT NULL,
  is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only)
);

-- Counts that a crash may lose. Pages have space for the next version of their rows, and no index covers columns that
-- change, so that an update stays in its page and adds no index entry.
CREATE UNLOGGED TABLE IF NOT EXISTS @schema@.ephemeral (
  name uuid PRIMARY KEY,
  expires_ms bigint NOT NULL,
  state bigint[] NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- Counts that survive a crash.
CREATE TABLE IF NOT EXISTS @schema@.durable (
  name uuid PRIMARY KEY,
  expires_ms bigint NOT NULL,
  state bigint[] NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- Returns the version, for roles without permission to read the table.
CREATE OR REPLACE FUNCTION @schema@.schema_version() RETURNS int
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT version FROM @schema@.version
$$;
