CREATE SCHEMA IF NOT EXISTS @schema@;

CREATE TABLE IF NOT EXISTS @schema@.version (
  version int NOT NULL,
  is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only)
);

-- What a crash may forget. Room in each page for the next version of its rows, and no index on what changes, so that an
-- update stays in its page and leaves nothing for the index.
CREATE UNLOGGED TABLE IF NOT EXISTS @schema@.ephemeral (
  name uuid PRIMARY KEY,
  expires_ms bigint NOT NULL,
  state bigint[] NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- The same, and it survives.
CREATE TABLE IF NOT EXISTS @schema@.durable (
  name uuid PRIMARY KEY,
  expires_ms bigint NOT NULL,
  state bigint[] NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- For those who may not look into the table.
CREATE OR REPLACE FUNCTION @schema@.schema_version() RETURNS int
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT version FROM @schema@.version
$$;
