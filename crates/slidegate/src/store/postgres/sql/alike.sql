-- What `decide` does, for what nearly everyone asks: one check of the same cost for each key, by one sliding window
-- from the epoch. Rows are read and written by the set, which takes half the time.
--
-- Answers with the keys that were there, whether each is allowed, and what was known of it; those that were not there
-- are allowed if the cost is. `now_ms` is null if some row is of another form, and then nothing was done.
CREATE OR REPLACE FUNCTION @schema@.decide_alike_@table@(keys uuid[], cost bigint, lim bigint, win bigint,
  given_ms bigint, lock_ms int, sync text,
  OUT now_ms bigint, OUT names uuid[], OUT allowed boolean[], OUT starts bigint[], OUT prevs bigint[],
  OUT curs bigint[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  places tid[];
  is_alike boolean;
  latest bigint;
  missing uuid[];
  added int;
BEGIN
  PERFORM set_config('lock_timeout', lock_ms::text, true);
  IF sync IS NOT NULL THEN
    PERFORM set_config('synchronous_commit', sync, true);
  END IF;
  SELECT coalesce(array_agg(x.name), '{}'), array_agg(x.place), coalesce(array_agg(x.state[4]), '{}'),
      coalesce(array_agg(x.state[5]), '{}'), coalesce(array_agg(x.state[6]), '{}'), max(x.state[4]),
      -- Products beyond 64 bits are left to the exact arithmetic.
      bool_and(cardinality(x.state) = 6 AND x.state[1] = 1 AND x.state[2] = win
        AND greatest(x.state[5], x.state[6]) <= 4611686018427387904 / win)
    INTO names, places, starts, prevs, curs, latest, is_alike
    FROM (SELECT t.ctid AS place, t.name, t.state FROM @schema@.@table@ t WHERE t.name = ANY (keys) ORDER BY t.name
      FOR UPDATE) x;
  now_ms := coalesce(given_ms, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint);
  IF NOT is_alike OR latest > now_ms THEN
    now_ms := NULL;
    RETURN;
  END IF;

  IF cardinality(names) < cardinality(keys) AND cost <= lim THEN
    missing := ARRAY(SELECT k FROM unnest(keys) k WHERE k <> ALL (names));
    INSERT INTO @schema@.@table@ (name, expires_ms, state)
      SELECT k, now_ms - now_ms % win + 2 * win, ARRAY[1, win, 3, now_ms - now_ms % win, 0, cost] FROM unnest(missing) k
      ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS added = ROW_COUNT;
    IF added < cardinality(missing) THEN
      RAISE EXCEPTION 'another call has added the key' USING ERRCODE = 'serialization_failure';
    END IF;
    PERFORM @schema@.clean_@table@(least(added, 4), now_ms);
  END IF;

  WITH rolled AS MATERIALIZED (
    SELECT nr, place,
      CASE WHEN now_ms - start < win AND prev + cur > 0 THEN start
        WHEN now_ms - start >= win AND now_ms - start < 2 * win AND cur > 0 THEN start + win
        ELSE now_ms - now_ms % win END AS start,
      CASE WHEN now_ms - start < win THEN prev WHEN now_ms - start < 2 * win THEN cur ELSE 0 END AS prev,
      CASE WHEN now_ms - start < win THEN cur ELSE 0 END AS cur
    FROM ROWS FROM (unnest(places), unnest(starts), unnest(prevs), unnest(curs))
      WITH ORDINALITY AS held (place, start, prev, cur, nr)
  ), decided AS MATERIALIZED (
    SELECT r.*, r.cur + (r.prev * (win - (now_ms - r.start)) + win - 1) / win + cost <= lim AS is_allowed FROM rolled r
  ), kept AS (
    UPDATE @schema@.@table@ t
      SET state = ARRAY[1, win, 3, d.start, d.prev, d.cur + cost], expires_ms = d.start + 2 * win
      FROM decided d WHERE d.is_allowed AND t.ctid = d.place
  )
  SELECT coalesce(array_agg(d.is_allowed ORDER BY d.nr), '{}') INTO allowed FROM decided d;
END $$;

