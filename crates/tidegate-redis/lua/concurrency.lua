-- concurrency: nothing is ever charged, only held. docs/arithmetic.md, "Concurrency".
--
-- limit: size (holders)

local concurrency = { format = "<d", unused = {}, is_held = true }
algorithms[6] = concurrency

function concurrency.limit(next)
  local size = next('size', 0, WHOLE)
  return { size = size, capacity = size }
end

function concurrency.pack(limit)
  return struct.pack(concurrency.format, limit.size)
end

function concurrency.unpack(value, from)
  local size, behind = struct.unpack(concurrency.format, value, from)
  return { size = size, capacity = size }, nil, behind
end

function concurrency.same(a, b)
  return a.size == b.size
end

function concurrency.charge()
  return nil
end

function concurrency.ahead()
  return false
end
