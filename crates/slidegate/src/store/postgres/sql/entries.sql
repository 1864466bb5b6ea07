-- strict-window and sliding-log: entries of a time and a count. The three numbers of the view are the stamp of an
-- admission, which is not before the newest entry, the number of expired entries, and the newest time. The moment is between
-- `now_ms` and `now_ms + grain`: entries expire by the start, and an admission is stamped with the end.

CREATE OR REPLACE FUNCTION @schema@.view_entries(rec bigint[], pos int, op bigint[], q int, now_ms bigint, grain bigint)
RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
  win CONSTANT bigint := op[q + 2];
  last int;
  newest bigint;
  moment bigint;
  used bigint := 0;
  expired int := 0;
BEGIN
  IF pos = 0 OR rec[pos + 2] = 0 THEN
    RETURN ARRAY[0, 0, now_ms + grain, 0, 0];
  END IF;
  last := pos + 2 + rec[pos + 2]::int;
  newest := rec[last - 1];
  IF newest - grain - now_ms > win THEN
    -- The clock stepped far back: all units count as admitted now.
    FOR i IN pos + 4 .. last BY 2 LOOP
      used := used + rec[i];
    END LOOP;
    RETURN ARRAY[used, 1, now_ms + grain, 0, now_ms + grain];
  END IF;
  moment := greatest(now_ms, newest - grain);
  FOR i IN pos + 3 .. last BY 2 LOOP
    IF rec[i] + win <= moment THEN
      expired := expired + 1;
    ELSE
      used := used + rec[i + 1];
    END IF;
  END LOOP;
  -- 2: the units were counted under another window.
  RETURN ARRAY[used, CASE WHEN used > 0 AND rec[pos + 1] <> win THEN 2 ELSE 0 END, greatest(now_ms + grain, newest),
    expired, newest];
END $$;

-- Returns null for a log of more than 32,768 entries, half a megabyte, all of which each decision would read and write.
CREATE OR REPLACE FUNCTION @schema@.keep_entries(rec bigint[], pos int, v bigint[], op bigint[], q int, verb bigint,
  spent bigint, grain bigint)
RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
  win CONSTANT bigint := op[q + 2];
  total CONSTANT bigint := greatest(v[1] + spent, op[q + 1]);
  moment CONSTANT bigint := v[3];
  entries bigint[] := '{}';
  n int;
  give bigint := op[2];
  first int := 1;
  best int;
  best_delay numeric;
BEGIN
  IF v[2] = 1 THEN
    entries := ARRAY[moment, v[1]];
  ELSIF v[1] > 0 THEN
    entries := rec[pos + 3 + 2 * v[4]::int : pos + 2 + rec[pos + 2]::int];
  END IF;
  n := cardinality(entries);
  IF verb = 3 THEN
    WHILE first < n AND give >= entries[first + 1] LOOP
      give := give - entries[first + 1];
      first := first + 2;
    END LOOP;
    entries := entries[first : n];
    n := cardinality(entries);
    IF n > 0 THEN
      entries[2] := entries[2] - give;
    END IF;
  ELSIF spent > 0 THEN
    IF n > 2 AND op[q] = 3 AND v[1] + spent > op[q + 1] AND moment - entries[n - 3] <= win / 8 THEN
      -- Units beyond the limit move the newest entry forward, if the entry before it is within an eighth of the window.
      entries[n - 1] := moment;
      entries[n] := entries[n] + spent;
    ELSIF n > 0 AND entries[n - 1] = moment THEN
      entries[n] := entries[n] + spent;
    ELSE
      entries := entries || ARRAY[moment, spent];
      n := n + 2;
    END IF;
  END IF;
  -- Merges the neighbours whose merge delays expiry the least. The core proves that a permitted merge exists. Only added units
  -- need merges: fewer slots of a changed policy keep the entries as they are.
  WHILE spent > 0 AND op[q] = 2 AND n > 2 * op[q + 4] LOOP
    best := NULL;
    FOR i IN 3 .. n - 3 BY 2 LOOP
      CONTINUE WHEN (entries[i + 2] - entries[i - 2]) * op[q + 4] > 4 * (win + grain)
        OR entries[i + 1] + entries[i + 3] > (4 * total + op[q + 4] - 1) / op[q + 4];
      IF best IS NULL OR entries[i + 1]::numeric * (entries[i + 2] - entries[i]) < best_delay THEN
        best := i;
        best_delay := entries[i + 1]::numeric * (entries[i + 2] - entries[i]);
      END IF;
    END LOOP;
    best := coalesce(best, n - 3);
    entries[best + 3] := entries[best + 1] + entries[best + 3];
    entries := entries[1 : best - 1] || entries[best + 2 : n];
    n := n - 2;
  END LOOP;
  IF n > 65536 THEN
    RETURN NULL;
  END IF;
  RETURN ARRAY[n, op[q], win, n] || entries;
END $$;

-- Returns a log of three or four entries that yields the same numbers in the response: the oldest entry, and the entries
-- whose expiry frees enough units.
CREATE OR REPLACE FUNCTION @schema@.excerpt(rec bigint[], pos int, op bigint[], q int, v bigint[], is_allowed boolean)
RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
  cap CONSTANT bigint := op[q + 1];
  used CONSTANT bigint := v[1];
  last CONSTANT int := pos + 2 + rec[pos + 2]::int;
  charged bigint;
  wanted bigint[] := ARRAY[1, greatest(1, used - cap + 1)];
  entries bigint[] := '{}';
  next_wanted int := 1;
  kept bigint := 0;
  running bigint := 0;
BEGIN
  IF used = 0 THEN
    RETURN ARRAY[3, rec[pos + 1], 0];
  ELSIF v[2] = 1 THEN
    RETURN ARRAY[3, rec[pos + 1], 2, rec[last - 1], used];
  END IF;
  IF op[1] = 3 THEN
    wanted := ARRAY[op[2] + 1, op[2] + greatest(1, greatest(used - op[2], 0) - cap + 1)];
  ELSIF op[1] = 5 THEN
    charged := used + @schema@.chargeable(used, op[2]) - cap;
    wanted := ARRAY(SELECT w FROM unnest(ARRAY[1, greatest(1, charged), greatest(1, charged + 1), used - rec[last]]) w
      ORDER BY w);
  ELSIF op[1] <> 6 AND NOT is_allowed AND op[2] <= cap THEN
    wanted := ARRAY[1, least(wanted[2], greatest(1, used + op[2] - cap)), greatest(wanted[2], used + op[2] - cap)];
  END IF;
  FOR i IN pos + 3 + 2 * v[4]::int .. last BY 2 LOOP
    running := running + rec[i + 1];
    WHILE next_wanted <= cardinality(wanted) AND wanted[next_wanted] <= running LOOP
      IF wanted[next_wanted] > kept THEN
        entries := entries || ARRAY[rec[i], wanted[next_wanted] - kept];
        kept := wanted[next_wanted];
      END IF;
      next_wanted := next_wanted + 1;
    END LOOP;
    EXIT WHEN next_wanted > cardinality(wanted);
  END LOOP;
  IF used > kept THEN
    entries := entries || ARRAY[rec[last - 1], used - kept];
  END IF;
  RETURN ARRAY[3, rec[pos + 1], cardinality(entries)]::bigint[] || entries;
END $$;
