-- concurrency: holds only, no charges. docs/understand/algorithms.md, "Concurrency".
--
-- limit: size (holders)

local concurrency = { format = '<dd', unused = {}, is_held = true }
algorithms[6] = concurrency

function concurrency.limit(next)
  local size = next('size', 0, WHOLE)
  return { size = size, capacity = size }
end

function concurrency.pack(limit, _, stamp)
  return struct.pack(concurrency.format, limit.size, stamp)
end

function concurrency.unpack(value, from)
  local size, stamp, next_byte = struct.unpack(concurrency.format, value, from)
  return { size = size, capacity = size }, nil, next_byte, stamp
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
