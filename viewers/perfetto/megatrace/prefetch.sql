-- Whether prefetches arrived in time.

INCLUDE PERFETTO MODULE megatrace.layer_times;

-- A prefetch and its first use: the first wait of that block for its edge and slot that belongs
-- to it, in this launch or a later one. A warp uses prefetches of the same edge and slot in the
-- order in which they were issued. The same as the table `prefetch_timing` of the capture.
CREATE OR REPLACE PERFETTO VIEW megatrace_prefetch (
  -- The prefetch.
  id JOINID(slice.id),
  -- When it was asked for. Same as `issue_ns`.
  ts TIMESTAMP,
  -- 0: it is an instant.
  dur DURATION,
  -- The track of its warp.
  track_id JOINID(track.id),
  -- Rank of the GPU.
  rank LONG,
  -- Which of its processes; 1 where it has had one.
  process LONG,
  -- Launch of that process on the GPU that asked, numbered from 0.
  launch_no LONG,
  -- Step id; 0 where the host says none.
  step LONG,
  -- Name of the kernel.
  kernel STRING,
  -- Layer.
  layer LONG,
  -- Block of the grid.
  block LONG,
  -- SM that the block ran on.
  sm LONG,
  -- Event that says so.
  event STRING,
  -- Dependency.
  edge STRING,
  -- Which of the dependency's hand-offs; -1: it has no numbers.
  slot LONG,
  -- When it was asked for, in ns.
  issue_ns LONG,
  -- When its first user asked, in ns; -1: not seen used.
  use_ns LONG,
  -- Launch of that; -1: not seen used.
  use_launch_no LONG,
  -- Layer of that; -1: not seen used.
  use_layer LONG,
  -- How long its first user was blocked, in ns, exact; 0: not late, -1: no use.
  late_ns LONG,
  -- It came so many ns before its use at most; -1: late, or no use.
  early_at_most_ns LONG,
  -- `late`, `early`, `never used`, `not seen` (its use leaves no word, or words were lost),
  -- `cpu` (times of the host build get no verdict).
  verdict STRING
) AS
WITH
  issue AS (
    SELECT
      slice.*,
      extract_arg(slice.arg_set_id, 'debug.launch') AS launch_no,
      extract_arg(slice.arg_set_id, 'debug.use_launch') AS use_launch,
      extract_arg(slice.arg_set_id, 'debug.late_ns') AS late_ns,
      coalesce(
        extract_arg(slice.arg_set_id, 'debug.used_after_ns'),
        -extract_arg(slice.arg_set_id, 'debug.used_before_ns')
      ) AS used_after_ns,
      extract_arg(slice.arg_set_id, 'debug.verdict') AS verdict
    FROM slice
    WHERE
      slice.dur = 0
  )
SELECT
  issue.id,
  issue.ts,
  issue.dur,
  issue.track_id,
  warp.rank,
  warp.process,
  issue.launch_no,
  launch.step,
  launch.kernel,
  launch.layer,
  coalesce(extract_arg(issue.arg_set_id, 'debug.block'), warp.block) AS block,
  warp.sm,
  issue.name AS event,
  megatrace_edge_of(issue.name, issue.arg_set_id) AS edge,
  coalesce(extract_arg(issue.arg_set_id, 'debug.slot'), -1) AS slot,
  issue.ts AS issue_ns,
  coalesce(issue.ts + used_after_ns, -1) AS use_ns,
  coalesce(use_launch, -1) AS use_launch_no,
  coalesce(use.layer, -1) AS use_layer,
  coalesce(late_ns, iif(use_launch IS NULL, -1, 0)) AS late_ns,
  iif(use_launch IS NULL OR late_ns IS NOT NULL, -1, max(used_after_ns, 0)) AS early_at_most_ns,
  issue.verdict
FROM issue
JOIN megatrace_warp_track AS warp USING (track_id)
JOIN megatrace_layer_times AS launch
  ON launch.rank = warp.rank
  AND launch.process = warp.process
  AND launch.launch_no = issue.launch_no
LEFT JOIN megatrace_layer_times AS use
  ON use.rank = warp.rank
  AND use.process = warp.process
  AND use.launch_no = issue.use_launch
WHERE
  issue.verdict IS NOT NULL;

-- Times in which somebody was blocked because a prefetch was late, overlapping ones of a GPU
-- in one.
CREATE OR REPLACE PERFETTO VIEW megatrace_late_prefetches (
  -- When the first of them asked.
  ts TIMESTAMP,
  -- Until the last of them had it.
  dur DURATION,
  -- How many there were of which layer, and the longest.
  name STRING,
  -- Rank of the GPU.
  rank LONG,
  -- Which of its processes; 1 where it has had one.
  process LONG,
  -- Layer of the first of them.
  layer LONG,
  -- How many prefetches were late.
  prefetches LONG,
  -- How long the longest of them blocked its user, in ns.
  late_ns LONG
) AS
WITH
  late AS (
    SELECT
      *,
      max(use_ns + late_ns) OVER (
        PARTITION BY rank, process
        ORDER BY use_ns, id
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
      ) AS until
    FROM megatrace_prefetch
    WHERE
      verdict = 'late'
  ),
  numbered AS (
    SELECT
      *,
      sum(until IS NULL OR use_ns > until) OVER (
        PARTITION BY rank, process
        ORDER BY use_ns, id
      ) AS number
    FROM late
  )
SELECT
  min(use_ns) AS ts,
  max(use_ns + late_ns) - min(use_ns) AS dur,
  'layer ' || min(use_layer) || ': ' || count() || ' late, up to ' || max(late_ns) || ' ns' AS name,
  rank,
  process,
  min(use_layer) AS layer,
  count() AS prefetches,
  max(late_ns) AS late_ns
FROM numbered
GROUP BY
  rank,
  process,
  number;
