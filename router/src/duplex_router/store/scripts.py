"""What the store does as one step, in Lua: each script is atomic there, and costs one round trip.

Keys, after the serving's prefix (in braces, so that a cluster keeps them in one slot):

    e:<id>           a handle: hash of r (record), o (owner), n (engine), b (boot), f (the server's life in which it was
                     first published), w (withdrawn: never found again), and l:<reader> (until when, in ms of the
                     store's clock, that reader's pull may run)
    m:<tenant+mark>  the id of the newest handle whose history has this mark
    b:<engine>       the engine's present boot
    own:<router>     sorted set of the ids that a router owns, by expiry
    in:<router>      ids that others ask their owner to release
    routers          sorted set of routers by their last beat in ms; 0: it left in peace

A pull is noted inside the handle's own hash, so that no eviction can lose the one without the other. Times are the
store's alone (TIME): no router's clock is compared with another's. Needs Redis 6.2 or Valkey.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

MAX_INBOX: Final = 16384
ADOPTED_AT_ONCE: Final = 64
INBOX_AT_ONCE: Final = 256
_SOON_GONE_MS: Final = 3_600_000
"""How long keys without an expiry of their own stay behind their last use."""

_NOW: Final = "local t = redis.call('TIME'); local now = t[1] * 1000 + math.floor(t[2] / 1000)\n"


@dataclass(frozen=True, slots=True)
class Script:
    """One script; `sha` is its name on the server."""

    text: bytes
    sha: bytes

    def call(self, prefix: bytes, *arguments: bytes) -> tuple[bytes, ...]:
        """Return the command that runs it. The one declared key tells a cluster which slot all of them are in."""
        return (b"EVALSHA", self.sha, b"1", prefix, *arguments)


def _script(text: str) -> Script:
    whole = ("local p = KEYS[1]\n" + text).encode()
    return Script(whole, hashlib.sha1(whole, usedforsecurity=False).hexdigest().encode())


NOT_OURS: Final = 0
# id, record, owner, engine, boot, two expiries, life, marks ... -> 1, or NOT_OURS: another router adopted it
PUBLISH: Final = _script(f"""
local e, own = p .. 'e:' .. ARGV[1], p .. 'own:' .. ARGV[3]
local owner = redis.call('HGET', e, 'o')
if owner and owner ~= ARGV[3] then return {NOT_OURS} end
redis.call('HSET', e, 'r', ARGV[2], 'o', ARGV[3], 'n', ARGV[4], 'b', ARGV[5])
redis.call('HSETNX', e, 'f', ARGV[8])
redis.call('PEXPIREAT', e, ARGV[6])
redis.call('SET', p .. 'b:' .. ARGV[4], ARGV[5], 'PXAT', ARGV[7])
redis.call('ZADD', own, ARGV[6], ARGV[1])
redis.call('PEXPIREAT', own, ARGV[7])
for i = 9, #ARGV do redis.call('SET', p .. 'm:' .. ARGV[i], ARGV[1], 'PXAT', ARGV[7]) end
return 1
""")

_FIND: Final = """
local keys = {}
for i = 3, #ARGV do keys[i - 2] = p .. 'm:' .. ARGV[i] end
local seen = {}
for _, id in ipairs(redis.call('MGET', unpack(keys))) do
  if id and not seen[id] then
    seen[id] = true
    local e = p .. 'e:' .. id
    local f = redis.call('HMGET', e, 'r', 'o', 'n', 'b', 'w')
    if f[1] and f[2] and not f[5] and redis.call('GET', p .. 'b:' .. f[3]) == f[4] then
      local left = redis.call('PTTL', e)
"""

# A reader's engine may stand still, and uses what it reads until the deadline that it was told: `left` counts too.
# reader, for how many ms its pull may run, marks deepest first ... -> [id, record, ms left] or nothing
BORROW: Final = _script(
    _NOW
    + _FIND
    + """
      redis.call('HSET', e, 'l:' .. ARGV[1], now + math.max(tonumber(ARGV[2]), left))
      return {id, f[1], left}
    end
  end
end
return false
"""
)

# "", "", marks deepest first ... -> the same, and the handle is the caller's alone
TAKE: Final = _script(
    _FIND
    + """
      redis.call('DEL', e)
      redis.call('ZREM', p .. 'own:' .. f[2], id)
      return {id, f[1], left}
    end
  end
end
return false
"""
)

# id, reader, "1" where the reader has something newer of the same history
GIVE_BACK: Final = _script(f"""
local e = p .. 'e:' .. ARGV[1]
redis.call('HDEL', e, 'l:' .. ARGV[2])
local owner = redis.call('HGET', e, 'o')
if ARGV[3] == '1' and owner then
  local inbox = p .. 'in:' .. owner
  redis.call('RPUSH', inbox, ARGV[1])
  redis.call('LTRIM', inbox, -{MAX_INBOX}, -1)
  redis.call('PEXPIRE', inbox, {_SOON_GONE_MS})
end
return 1
""")

FREE, BUSY, UNKNOWN = 0, 1, 2
# id, owner, marks ... -> FREE: nobody reads it and nobody will; BUSY: nobody new will; UNKNOWN: the store cannot say
WITHDRAW: Final = _script(
    _NOW
    + f"""
local e = p .. 'e:' .. ARGV[1]
local f = redis.call('HGETALL', e)
local owner, readers = nil, 0
for i = 1, #f, 2 do
  if f[i] == 'o' then owner = f[i + 1] end
  if string.sub(f[i], 1, 2) == 'l:' and tonumber(f[i + 1]) > now then readers = readers + 1 end
end
if owner ~= ARGV[2] then return {UNKNOWN} end
for i = 3, #ARGV do
  local m = p .. 'm:' .. ARGV[i]
  if redis.call('GET', m) == ARGV[1] then redis.call('DEL', m) end
end
if readers > 0 then
  redis.call('HSET', e, 'w', '1')
  return {BUSY}
end
redis.call('DEL', e)
redis.call('ZREM', p .. 'own:' .. owner, ARGV[1])
return {FREE}
"""
)

# router, after how many ms without a beat one is dead, within how many it counts as there
# -> [now, how many are there, a dead one or "", inbox]
BEAT: Final = _script(
    _NOW
    + f"""
local routers, inbox, own = p .. 'routers', p .. 'in:' .. ARGV[1], p .. 'own:' .. ARGV[1]
redis.call('ZADD', routers, now, ARGV[1])
redis.call('PEXPIRE', routers, {_SOON_GONE_MS})
redis.call('ZREMRANGEBYSCORE', own, '-inf', now)
local asked = redis.call('LRANGE', inbox, 0, {INBOX_AT_ONCE - 1})
redis.call('LTRIM', inbox, {INBOX_AT_ONCE}, -1)
local there = redis.call('ZCOUNT', routers, now - ARGV[3], '+inf')
local dead = redis.call('ZRANGEBYSCORE', routers, '-inf', now - ARGV[2], 'LIMIT', 0, 1)
return {{now, there, dead[1] or '', asked}}
"""
)

# router, dead router, after how many ms one is dead -> [[id, record, ms left, withdrawn, life], ...]
ADOPT: Final = _script(
    _NOW
    + f"""
local routers, mine, theirs = p .. 'routers', p .. 'own:' .. ARGV[1], p .. 'own:' .. ARGV[2]
local beat = redis.call('ZSCORE', routers, ARGV[2])
if not beat or tonumber(beat) > now - ARGV[3] then return {{}} end
local ids = redis.call('ZRANGE', theirs, 0, {ADOPTED_AT_ONCE - 1}, 'WITHSCORES')
local found = {{}}
for i = 1, #ids, 2 do
  local e = p .. 'e:' .. ids[i]
  local f = redis.call('HMGET', e, 'r', 'o', 'w', 'f')
  redis.call('ZREM', theirs, ids[i])
  if f[1] and f[2] == ARGV[2] then
    redis.call('HSET', e, 'o', ARGV[1])
    redis.call('ZADD', mine, ids[i + 1], ids[i])
    table.insert(found, {{ids[i], f[1], redis.call('PTTL', e), f[3] or '', f[4] or ''}})
  end
end
redis.call('PEXPIRE', mine, {_SOON_GONE_MS})
if redis.call('ZCARD', theirs) == 0 then
  redis.call('ZREM', routers, ARGV[2])
  local asked = redis.call('LRANGE', p .. 'in:' .. ARGV[2], 0, -1)
  redis.call('DEL', p .. 'in:' .. ARGV[2])
  for _, id in ipairs(asked) do redis.call('RPUSH', p .. 'in:' .. ARGV[1], id) end
end
return found
"""
)

# router: it has ended in peace, no pull of it runs any more
LEAVE: Final = _script("""
redis.call('ZADD', p .. 'routers', 0, ARGV[1])
return 1
""")

ALL: Final = (PUBLISH, BORROW, TAKE, GIVE_BACK, WITHDRAW, BEAT, ADOPT, LEAVE)
