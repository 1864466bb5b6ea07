-- ceil(a·b / c), exactly, for products beyond 64 bits too.
CREATE OR REPLACE FUNCTION @schema@.mul_div_ceil(a bigint, b bigint, c bigint) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
  IF b = 0 OR a <= 4611686018427387904 / b THEN
    RETURN a * b / c + CASE WHEN a * b % c > 0 THEN 1 ELSE 0 END;
  END IF;
  -- Not `/`, which rounds.
  RETURN div(a::numeric * b, c) + CASE WHEN mod(a::numeric * b, c) > 0 THEN 1 ELSE 0 END;
END $$;

-- The start of the window in which a key with no history is; 1 anchors it at the first request.
CREATE OR REPLACE FUNCTION @schema@.window_start(anchor bigint, win bigint, now_ms bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE WHEN anchor = 1 THEN now_ms ELSE now_ms - now_ms % win END
$$;

-- How much of a charge is counted: no more is ever counted at one time than in the core.
CREATE OR REPLACE FUNCTION @schema@.chargeable(used bigint, cost bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT least(cost, greatest(562949953421312 - used, 0))
$$;
