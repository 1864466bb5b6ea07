-- A pair of functions per algorithm. `view_…` rolls the part of a record at `pos` (0: none) to a moment. It returns the
-- used units, whether the part was adjusted, and three numbers of the algorithm. `keep_…` returns the counted units and the
-- new part.

CREATE OR REPLACE FUNCTION @schema@.view_sliding_window(rec bigint[], pos int, op bigint[], q int, now_ms bigint)
RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
  win bigint;
  start bigint;
  prev bigint := 0;
  cur bigint := 0;
  used bigint;
  is_adjusted bigint := 0;
BEGIN
  IF pos > 0 THEN
    win := rec[pos + 1];
    start := rec[pos + 3];
    prev := rec[pos + 4];
    cur := rec[pos + 5];
    IF now_ms < start THEN
      IF start - now_ms > win THEN
        start := @schema@.window_start(op[q + 4], win, now_ms);
        is_adjusted := 1;
      END IF;
    ELSIF now_ms - start >= win THEN
      IF now_ms - start < 2 * win THEN
        start := start + win;
        prev := cur;
      ELSE
        prev := 0;
      END IF;
      cur := 0;
    END IF;
  END IF;
  IF prev = 0 AND cur = 0 THEN
    RETURN ARRAY[0, 0, @schema@.window_start(op[q + 4], op[q + 2], now_ms), 0, 0];
  END IF;
  used := @schema@.mul_div_ceil(prev, win - greatest(now_ms - start, 0), win) + cur;
  -- Units of a longer window count as spent now. Units of a shorter one do so with the next spent unit.
  IF win > op[q + 2] AND used > 0 THEN
    RETURN ARRAY[used, 1, now_ms, 0, used];
  END IF;
  RETURN ARRAY[used, is_adjusted, start, prev, cur];
END $$;

CREATE OR REPLACE FUNCTION @schema@.keep_sliding_window(v bigint[], op bigint[], q int, verb bigint, spent bigint,
  counted_win bigint, now_ms bigint)
RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
  win bigint := op[q + 2];
  prev bigint := v[4];
  cur bigint := v[5] + spent;
  from_cur bigint;
BEGIN
  IF v[1] > 0 AND counted_win < win THEN
    IF spent > 0 THEN
      RETURN ARRAY[v[1] + spent, 1, win, 3, now_ms, 0, v[1] + spent];
    END IF;
    win := counted_win;
  END IF;
  IF verb = 3 THEN
    from_cur := least(op[2], cur);
    cur := cur - from_cur;
    prev := prev - least(op[2] - from_cur, prev);
  END IF;
  RETURN ARRAY[prev + cur, 1, win, 3, v[3], prev, cur];
END $$;

CREATE OR REPLACE FUNCTION @schema@.view_fixed_window(rec bigint[], pos int, op bigint[], q int, now_ms bigint)
RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
  win bigint;
  start bigint;
  cur bigint;
BEGIN
  IF pos > 0 THEN
    win := rec[pos + 1];
    start := rec[pos + 3];
    cur := rec[pos + 4];
  END IF;
  IF pos = 0 OR cur = 0 OR now_ms - start >= win THEN
    RETURN ARRAY[0, 0, @schema@.window_start(op[q + 4], op[q + 2], now_ms), 0, 0];
  ELSIF win > op[q + 2] THEN
    RETURN ARRAY[cur, 1, now_ms, 0, 0];
  ELSIF start - now_ms > win THEN
    RETURN ARRAY[cur, 1, @schema@.window_start(op[q + 4], win, now_ms), 0, 0];
  END IF;
  RETURN ARRAY[cur, 0, start, 0, 0];
END $$;

CREATE OR REPLACE FUNCTION @schema@.keep_fixed_window(v bigint[], op bigint[], q int, verb bigint, spent bigint,
  counted_win bigint, now_ms bigint)
RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
  win bigint := op[q + 2];
  cur bigint := v[1] + spent;
BEGIN
  IF v[1] > 0 AND counted_win < win THEN
    IF spent > 0 THEN
      RETURN ARRAY[cur, 4, win, 2, now_ms, cur];
    END IF;
    win := counted_win;
  END IF;
  IF verb = 3 THEN
    cur := greatest(cur - op[2], 0);
  END IF;
  RETURN ARRAY[cur, 4, win, 2, v[3], cur];
END $$;

-- A debt is paid off up to now at the rate of the quota that wrote it. Under another quota it is then capped at that
-- quota's capacity. Under a limit of 0, which only charges exceed, the rate is that of a limit of 1.
CREATE OR REPLACE FUNCTION @schema@.view_token_bucket(rec bigint[], pos int, op bigint[], q int, now_ms bigint)
RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
  win CONSTANT bigint := op[q + 2];
  tokens bigint := 0;
  rest bigint := 0;
  written bigint := now_ms;
  is_adjusted bigint := 0;
  ahead bigint;
  owed numeric;
BEGIN
  IF pos > 0 THEN
    tokens := rec[pos + 4];
    rest := rec[pos + 5];
    ahead := rec[pos + 3] - now_ms;
    IF ahead > win THEN
      is_adjusted := 1;
    ELSIF ahead > 0 THEN
      written := rec[pos + 3];
    ELSE
      owed := greatest(tokens::numeric * rec[pos + 1] + rest + greatest(rec[pos + 6], 1)::numeric * ahead, 0);
      tokens := div(owed, rec[pos + 1]);
      rest := mod(owed, rec[pos + 1]);
    END IF;
  END IF;
  IF tokens = 0 AND rest = 0 THEN
    RETURN ARRAY[0, 0, now_ms, 0, 0];
  END IF;
  IF rec[pos + 1] <> win OR rec[pos + 6] <> op[q + 1] OR rec[pos + 7] <> op[q + 3] THEN
    is_adjusted := 1;
    -- The same number of tokens in the new unit, rounded against the caller.
    rest := @schema@.mul_div_ceil(rest, win, rec[pos + 1]);
    IF rest = win THEN
      tokens := tokens + 1;
      rest := 0;
    END IF;
    IF tokens >= op[q + 3] THEN
      tokens := op[q + 3];
      rest := 0;
    END IF;
  END IF;
  RETURN ARRAY[tokens + CASE WHEN rest > 0 THEN 1 ELSE 0 END, is_adjusted, written, tokens, rest];
END $$;

CREATE OR REPLACE FUNCTION @schema@.keep_token_bucket(v bigint[], op bigint[], q int, verb bigint, spent bigint)
RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
  win CONSTANT bigint := op[q + 2];
  tokens bigint := v[4] + spent;
  rest bigint := v[5];
BEGIN
  IF verb = 3 THEN
    tokens := tokens - op[2];
    IF tokens < 0 THEN
      tokens := 0;
      rest := 0;
    END IF;
  END IF;
  RETURN ARRAY[tokens + rest, 5, win, 5, v[3], tokens, rest, op[q + 1], op[q + 3]];
END $$;

-- Returns the latest time in the part at `pos`.
CREATE OR REPLACE FUNCTION @schema@.latest(rec bigint[], pos int)
RETURNS bigint LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
  RETURN CASE WHEN rec[pos] IN (1, 4, 5) THEN rec[pos + 3]
    WHEN rec[pos + 2] = 0 THEN 0 ELSE rec[pos + 1 + rec[pos + 2]::int] END;
END $$;

-- Returns the moment until which the part at `pos` counts units under its own quota; 0 if it counts none.
CREATE OR REPLACE FUNCTION @schema@.ends(rec bigint[], pos int)
RETURNS bigint LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
  win CONSTANT bigint := rec[pos + 1];
BEGIN
  RETURN CASE
    WHEN rec[pos] = 1 THEN
      CASE WHEN rec[pos + 5] > 0 THEN rec[pos + 3] + 2 * win WHEN rec[pos + 4] > 0 THEN rec[pos + 3] + win ELSE 0 END
    WHEN rec[pos] = 4 THEN CASE WHEN rec[pos + 4] > 0 THEN rec[pos + 3] + win ELSE 0 END
    WHEN rec[pos] = 5 THEN
      CASE WHEN rec[pos + 4] > 0 OR rec[pos + 5] > 0 THEN least(9007199254740992, rec[pos + 3]
        + div(rec[pos + 4]::numeric * win + rec[pos + 5] + greatest(rec[pos + 6], 1) - 1, greatest(rec[pos + 6], 1)))
        ELSE 0 END
    WHEN rec[pos + 2] = 0 THEN 0
    -- The newest entry expires last.
    ELSE rec[pos + 1 + rec[pos + 2]::int] + win
  END;
END $$;

-- Returns whether the part at `pos` was counted for the quota at `q`. Only token buckets contain limit and capacity.
CREATE OR REPLACE FUNCTION @schema@.is_of(rec bigint[], pos int, op bigint[], q int)
RETURNS boolean LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
  RETURN rec[pos] = op[q] AND rec[pos + 1] = op[q + 2]
    AND (op[q] <> 5 OR (rec[pos + 6] = op[q + 1] AND rec[pos + 7] = op[q + 3]));
END $$;

-- Returns the moment until which the part at `pos` counts units under the quota at `q`, which is of its algorithm.
CREATE OR REPLACE FUNCTION @schema@.counts_until(rec bigint[], pos int, op bigint[], q int)
RETURNS bigint LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
  win CONSTANT bigint := op[q + 2];
BEGIN
  -- These parts may have been counted under another window, by which they end.
  IF rec[pos] = 1 THEN
    RETURN rec[pos + 3] + CASE WHEN rec[pos + 5] > 0 THEN 2 ELSE 1 END * rec[pos + 1];
  ELSIF rec[pos] = 4 THEN
    RETURN rec[pos + 3] + rec[pos + 1];
  ELSIF rec[pos] = 5 THEN
    -- The rest of another window is at most one token. The largest moment is that of the calendar.
    RETURN least(9007199254740992, rec[pos + 3] + 1 + div(
      rec[pos + 4]::numeric * win + CASE WHEN rec[pos + 1] = win THEN rec[pos + 5] ELSE win END, greatest(op[q + 1], 1)));
  END IF;
  -- The newest entry expires last.
  RETURN rec[pos + 1 + rec[pos + 2]::int] + win;
END $$;
