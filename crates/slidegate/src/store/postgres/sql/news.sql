-- What was given back last, for each of 256 parts of all keys: another number each time. After a crash the table is empty,
-- which is another number too.
CREATE UNLOGGED TABLE IF NOT EXISTS @schema@.news (
  part smallint PRIMARY KEY,
  version bigint NOT NULL
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- The part of a key. The store has the same.
CREATE OR REPLACE FUNCTION @schema@.part(name uuid) RETURNS smallint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT get_byte(uuid_send(name), 0)::smallint
$$;

-- Lets everybody know that something is given back to these keys. Last of all that a call locks, and in order, so that no
-- two calls ever wait for each other.
CREATE OR REPLACE FUNCTION @schema@.tell(keys uuid[]) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  INSERT INTO @schema@.news (part, version)
    SELECT p.part, floor(random() * 9007199254740992)::bigint
      FROM (SELECT DISTINCT @schema@.part(k.name) AS part FROM unnest(keys) k (name)) p ORDER BY p.part
    ON CONFLICT (part) DO UPDATE SET version = excluded.version
$$;

-- For those who remember what they were told.
CREATE OR REPLACE FUNCTION @schema@.news(OUT parts int[], OUT versions bigint[])
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce(array_agg(n.part), '{}'), coalesce(array_agg(n.version), '{}') FROM @schema@.news n
$$;

-- They have another shape than in version 1.
DROP FUNCTION IF EXISTS @schema@.run(bigint[], int[], bigint[], int[], bigint);
DROP FUNCTION IF EXISTS @schema@.step(bigint[], bigint[], bigint);
