-- Returns ceil(a·b / c), exactly, also for products beyond 64 bits.
CREATE OR REPLACE FUNCTION @schema@.mul_div_ceil(a bigint, b bigint, c bigint) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
  IF b = 0 OR a <= 4611686018427387904 / b THEN
    RETURN a * b / c + CASE WHEN a * b % c > 0 THEN 1 ELSE 0 END;
  END IF;
  -- `/` would round.
  RETURN div(a::numeric * b, c) + CASE WHEN mod(a::numeric * b, c) > 0 THEN 1 ELSE 0 END;
END $$;

-- Returns the start of a new key's window. Anchor 1 is the first request, any other the epoch.
CREATE OR REPLACE FUNCTION @schema@.window_start(anchor bigint, win bigint, now_ms bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE WHEN anchor = 1 THEN now_ms ELSE now_ms - now_ms % win END
$$;

-- Returns the part of a charge that is counted. The largest count is the core's.
CREATE OR REPLACE FUNCTION @schema@.chargeable(used bigint, cost bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT least(cost, greatest(562949953421312 - used, 0))
$$;
