-- Deletes up to `max_keys` keys of a range of names, in order. `last_name` is the last of them; null if there were none.
-- Rows are locked in the order in which decisions lock them, and versions are written last, so that calls cannot deadlock.
CREATE OR REPLACE FUNCTION @schema@.forget_@table@(from_name uuid, to_name uuid, max_keys int,
  OUT deleted bigint, OUT last_name uuid)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
  names uuid[];
  places tid[];
BEGIN
  names := ARRAY(SELECT t.name FROM @schema@.@table@ t WHERE t.name BETWEEN from_name AND to_name ORDER BY t.name
    LIMIT max_keys);
  last_name := names[cardinality(names)];
  SELECT array_agg(x.name), array_agg(x.place) INTO names, places FROM (
    SELECT t.name, t.ctid AS place FROM @schema@.@table@ t WHERE t.name = ANY (names) ORDER BY t.name FOR UPDATE) x;
  DELETE FROM @schema@.@table@ t WHERE t.ctid = ANY (places);
  GET DIAGNOSTICS deleted = ROW_COUNT;
  IF deleted > 0 THEN
    PERFORM @schema@.invalidate_@table@(names);
  END IF;
END $$;
