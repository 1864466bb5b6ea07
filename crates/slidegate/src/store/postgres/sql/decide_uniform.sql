-- Decides a uniform batch: checks of the same cost by one sliding window from the epoch, any number of them per key. This is
-- the most common batch. Rows are read and written as a set, and the checks of a key take one division, so that it needs
-- at most half the time of `decide`.
--
-- `existing` are the indexes of the keys with a row. For each of them, `allowed_counts` is the number of allowed checks,
-- which are the first ones, and the other arrays are its record at this time, before the checks. A key without a row has an
-- empty record. If a row has another form, `now_ms` is null and nothing was decided.
CREATE OR REPLACE FUNCTION @schema@.decide_uniform_@table@(keys uuid[], counts int[], cost bigint, lim bigint, win bigint,
  given_ms bigint, lock_ms int, sync text,
  OUT now_ms bigint, OUT existing int[], OUT allowed_counts bigint[], OUT starts bigint[], OUT prevs bigint[],
  OUT curs bigint[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
  places tid[];
  is_uniform boolean;
  latest bigint;
  missing int;
  added int;
BEGIN
  PERFORM set_config('lock_timeout', lock_ms::text, true);
  IF sync IS NOT NULL THEN
    PERFORM set_config('synchronous_commit', sync, true);
  END IF;
  SELECT coalesce(array_agg(array_position(keys, x.name)), '{}'), array_agg(x.place), array_agg(x.state[4]),
      array_agg(x.state[5]), array_agg(x.state[6]), max(x.state[4]),
      -- `decide` handles products beyond 64 bits, and reports invalid records.
      bool_and(coalesce(cardinality(x.state) = 6 AND x.state[1] = 1 AND x.state[2] = win AND x.state[4] >= 0
        AND x.state[5] BETWEEN 0 AND 4611686018427387904 / win
        AND x.state[6] BETWEEN 0 AND 4611686018427387904 / win, false))
    INTO existing, places, starts, prevs, curs, latest, is_uniform
    FROM (SELECT t.ctid AS place, t.name, t.state FROM @schema@.@table@ t WHERE t.name = ANY (keys) ORDER BY t.name
      FOR UPDATE) x;
  now_ms := coalesce(given_ms, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint);
  IF NOT is_uniform OR latest > now_ms THEN
    now_ms := NULL;
    RETURN;
  END IF;

  missing := cardinality(keys) - cardinality(existing);
  IF missing > 0 AND cost <= lim THEN
    INSERT INTO @schema@.@table@ (name, expires_ms, state)
      SELECT k.name, now_ms - now_ms % win + 2 * win,
        ARRAY[1, win, 3, now_ms - now_ms % win, 0, cost * least(k.checks, lim / cost)]
      FROM ROWS FROM (unnest(keys), unnest(counts)) WITH ORDINALITY AS k (name, checks, place)
      WHERE k.place <> ALL (existing)
      ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS added = ROW_COUNT;
    IF added < missing THEN
      RAISE EXCEPTION 'another call has added the key' USING ERRCODE = 'serialization_failure';
    END IF;
    PERFORM @schema@.clean_@table@(least(added, 4), now_ms);
  END IF;

  WITH rolled AS MATERIALIZED (
    SELECT place, key,
      CASE WHEN now_ms - start < win AND prev + cur > 0 THEN start
        WHEN now_ms - start >= win AND now_ms - start < 2 * win AND cur > 0 THEN start + win
        ELSE now_ms - now_ms % win END AS start,
      CASE WHEN now_ms - start < win THEN prev WHEN now_ms - start < 2 * win THEN cur ELSE 0 END AS prev,
      CASE WHEN now_ms - start < win THEN cur ELSE 0 END AS cur
    FROM ROWS FROM (unnest(places), unnest(existing), unnest(starts), unnest(prevs), unnest(curs))
      AS e (place, key, start, prev, cur)
  ), decided AS MATERIALIZED (
    SELECT r.*, greatest(0, least(counts[r.key],
        (lim - r.cur - (r.prev * (win - (now_ms - r.start)) + win - 1) / win) / cost)) AS allowed
      FROM rolled r
  ), kept AS (
    UPDATE @schema@.@table@ t
      SET state = ARRAY[1, win, 3, d.start, d.prev, d.cur + cost * d.allowed], expires_ms = d.start + 2 * win
      FROM decided d WHERE d.allowed > 0 AND t.ctid = d.place
  )
  SELECT array_agg(d.key), array_agg(d.allowed), array_agg(d.start), array_agg(d.prev), array_agg(d.cur)
    INTO existing, allowed_counts, starts, prevs, curs FROM decided d;
END $$;
