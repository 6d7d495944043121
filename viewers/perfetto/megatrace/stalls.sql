-- Where the time of warps goes.

INCLUDE PERFETTO MODULE megatrace.layer_times;

-- A warp in a launch and a class of its time, where it is not 0. The rows of a warp add up
-- to the time of the launch. The same as the table `stall_classes` of the capture.
CREATE OR REPLACE PERFETTO VIEW megatrace_stalls (
  -- The launch on the track of the warp.
  id JOINID(slice.id),
  -- When the warp began the launch.
  ts TIMESTAMP,
  -- How long the warp was in the launch.
  dur DURATION,
  -- The track of the warp.
  track_id JOINID(track.id),
  -- Rank of the GPU.
  rank LONG,
  -- Which of its processes; 1 where it has had one.
  process LONG,
  -- Launch of that process on the GPU, numbered from 0.
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
  -- Warp of the block.
  warp LONG,
  -- Role of the warp.
  role STRING,
  -- `data`: waits for bytes that it asked for. `input`: for a result of another block of
  -- this GPU. `peer`: for another GPU. `space`: for a free stage. `before_start`: the launch
  -- has begun on another warp, this one has not. `not_waiting`: for nothing, as far as its
  -- records say. `tail`: it has ended, the launch has not. `unknown`: records were lost.
  class STRING,
  -- Time of that class, in ns.
  dur_ns LONG,
  -- Of the time of the launch.
  share DOUBLE
) AS
WITH
  spent AS (
    SELECT
      slice.id,
      substr(args.key, 7, length(args.key) - 9) AS class,
      args.int_value AS dur_ns,
      sum(args.int_value) OVER (PARTITION BY slice.id) AS wall_ns
    FROM slice
    JOIN args USING (arg_set_id)
    WHERE
      slice.category = 'warp'
      AND args.key IN (
        'debug.data_ns', 'debug.input_ns', 'debug.peer_ns', 'debug.space_ns',
        'debug.before_start_ns', 'debug.not_waiting_ns', 'debug.tail_ns', 'debug.unknown_ns'
      )
  )
SELECT
  warp.id,
  warp.ts,
  warp.dur,
  warp.track_id,
  warp.rank,
  warp.process,
  warp.launch_no,
  launch.step,
  launch.kernel,
  launch.layer,
  warp.block,
  warp.sm,
  warp.warp,
  warp.role,
  spent.class,
  spent.dur_ns,
  spent.dur_ns * 1.0 / spent.wall_ns AS share
FROM spent
JOIN megatrace_warp_launches AS warp USING (id)
JOIN megatrace_layer_times AS launch
  ON launch.rank = warp.rank
  AND launch.process = warp.process
  AND launch.launch_no = warp.launch_no;

-- Where the warps of a launch wait, by class: the sum over its warps.
CREATE OR REPLACE PERFETTO VIEW megatrace_stalls_by_layer (
  -- Rank of the GPU.
  rank LONG,
  -- Which of its processes; 1 where it has had one.
  process LONG,
  -- Step id; 0 where the host says none.
  step LONG,
  -- Launch of that process on the GPU, numbered from 0.
  launch_no LONG,
  -- Name of the kernel.
  kernel STRING,
  -- Layer.
  layer LONG,
  -- Class, as in `megatrace_stalls`.
  class STRING,
  -- Sum over the warps, in us.
  warp_us DOUBLE,
  -- Of the time of all its warps.
  percent DOUBLE,
  -- Warps that spent time so.
  warps LONG
) AS
SELECT
  rank,
  process,
  step,
  launch_no,
  kernel,
  layer,
  class,
  sum(dur_ns) / 1e3 AS warp_us,
  round(
    100.0 * sum(dur_ns) / sum(sum(dur_ns)) OVER (PARTITION BY rank, process, launch_no),
    1
  ) AS percent,
  count() AS warps
FROM megatrace_stalls
GROUP BY
  rank,
  process,
  launch_no,
  class;
