-- What was given back last in this table, for each of 256 parts of all keys, by the last byte of their names (the first
-- ones are those of the policy): another number each time. The part -1 is the
-- table itself: when it is another one, or empty after a crash, so are the counts.
CREATE UNLOGGED TABLE IF NOT EXISTS @schema@.news_@table@ (
  part smallint PRIMARY KEY,
  version bigint NOT NULL
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- Lets everybody know that something is given back to these keys. Last of all that a call locks, and in order, so that no
-- two calls ever wait for each other.
CREATE OR REPLACE FUNCTION @schema@.tell_@table@(keys uuid[]) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  INSERT INTO @schema@.news_@table@ (part, version)
    SELECT p.part, floor(random() * 9007199254740992)::bigint
      FROM (SELECT DISTINCT get_byte(uuid_send(k.name), 15)::smallint AS part FROM unnest(keys) k (name)) p
      ORDER BY p.part
    ON CONFLICT (part) DO UPDATE SET version = excluded.version
$$;

-- For those who remember what they were told.
CREATE OR REPLACE FUNCTION @schema@.news_of_@table@(OUT parts int[], OUT versions bigint[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  FOR attempt IN 1 .. 2 LOOP
    SELECT coalesce(array_agg(n.part), '{}'), coalesce(array_agg(n.version), '{}') INTO parts, versions
      FROM @schema@.news_@table@ n;
    EXIT WHEN -1 = ANY (parts);
    INSERT INTO @schema@.news_@table@ (part, version) VALUES (-1, floor(random() * 9007199254740992)::bigint)
      ON CONFLICT DO NOTHING;
  END LOOP;
END $$;
