-- Where things are in a trace that `megatrace export` wrote.
--
-- Arguments say what the tables of the capture say. Times are of the trace: the
-- globaltimer of the first rank, onto which other ranks and the host are placed.

-- GPUs, a track each and one more for every lane of overlapping launches.
CREATE OR REPLACE PERFETTO TABLE megatrace_gpu_track (
  -- The track.
  track_id JOINID(track.id),
  -- Rank of the GPU.
  rank LONG,
  -- Which of its processes; 1 where it has had one.
  process LONG,
  -- Whether its times are of the host build, which says nothing about a GPU.
  is_cpu BOOL
) AS
SELECT
  id AS track_id,
  cast(substr(name, 6) AS INT) AS rank,
  iif(name GLOB 'rank *#*', cast(substr(name, instr(name, '#') + 1) AS INT), 1) AS process,
  name GLOB '*device=cpu*' AS is_cpu
FROM track
WHERE
  parent_id IS NULL AND name GLOB 'rank * GPU*';

-- Warps, a track each and one more for every lane of what overlaps.
CREATE OR REPLACE PERFETTO TABLE megatrace_warp_track (
  -- The track.
  track_id JOINID(track.id),
  -- Rank of its GPU.
  rank LONG,
  -- Which of its processes.
  process LONG,
  -- Block of the grid.
  block LONG,
  -- SM that the block ran on; null where it ran on several.
  sm LONG,
  -- Warp of the block.
  warp LONG,
  -- Role of the warp, `warp 3` where it has no name.
  role STRING
) AS
SELECT
  warp.id AS track_id,
  gpu.rank,
  gpu.process,
  cast(substr(block.name, 7) AS INT) AS block,
  iif(
    block.name GLOB '* (SM *',
    cast(substr(block.name, instr(block.name, '(SM ') + 4) AS INT),
    NULL
  ) AS sm,
  cast(substr(warp.name, length(rtrim(warp.name, '0123456789')) + 1) AS INT) AS warp,
  iif(
    warp.name GLOB 'warp [0-9]*',
    warp.name,
    substr(warp.name, 1, length(rtrim(warp.name, '0123456789')) - 2)
  ) AS role
FROM track AS warp
JOIN track AS block
  ON warp.parent_id = block.id
JOIN megatrace_gpu_track AS gpu
  ON block.parent_id = gpu.track_id
WHERE
  block.name GLOB 'block *' AND warp.name GLOB '*[0-9]'
ORDER BY
  track_id;

-- The dependency that an event is about.
CREATE OR REPLACE PERFETTO TABLE megatrace_event_edge (
  -- Event.
  event STRING,
  -- Dependency.
  edge STRING
) AS
SELECT
  substr(name, length('cr-megatrace.edge.') + 1) AS event,
  str_value AS edge
FROM metadata
WHERE
  name GLOB 'cr-megatrace.edge.*';

-- The dependency that a record is about; null where it is about none.
CREATE OR REPLACE PERFETTO FUNCTION megatrace_edge_of(
  -- Event.
  event STRING,
  -- Arguments of the record.
  arg_set_id ARGSETID
)
-- The dependency.
RETURNS STRING AS
SELECT
  coalesce(
    extract_arg($arg_set_id, 'debug.edge'),
    (SELECT edge FROM megatrace_event_edge WHERE event = $event)
  );
