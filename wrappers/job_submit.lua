--[[
Makes a job whose comment begins with "hadar:" steerable at its submission, and refuses a comment that cannot be read.

Install: copy beside slurm.conf, set JobSubmitPlugins=lua, then "scontrol reconfigure". Slurm calls these functions
while it holds its locks, so nothing in them reads a file or starts a program (slurm.conf is read once, when the script
is loaded), and whatever a user may write as long as they like is measured before it is read, and read in one pass. Jobs without "hadar:" pass untouched, and so does every
job for which this script itself should fail: the failure is logged, the job goes on.

What it does to a batch job with a hadar: comment:
  * a typed GPU request (gpu:v100:2) becomes an untyped one, since Slurm cannot move a typed job to another type; the
    types are kept in the comment as prefer=v100, unless the comment has a prefer= of its own;
  * --gpus=N on exactly one node becomes N GPUs per node, which leaves no stale count behind when the job is moved;
  * requeue is switched on;
  * GPU counts that sbatch froze into the job's environment are emptied (per task: made untyped), and HADAR_MANAGED=1
    tells the TaskProlog to put the task counts right, HADAR_NO_TASKS=1 to drop them: the job has asked for none, and has
    only inherited those of the one that it was submitted from;
  * with LEASE_S above 0 it does not start before that many seconds have passed, so that the controller sees it first;
    with types= or mem= in its comment it waits TYPES_LEASE_S at least: Slurm itself would start it on any GPU type;
  * GPU types that no node of slurm.conf has are told of;
  * --nodelist is refused, since it would nail the job to those nodes; with pin=yes the job is left alone instead;
  * lease= and asked=, which the scheduler writes, are refused from a user.
Not possible here: open_mode cannot be set by a job_submit script in Slurm 22.05; use --open-mode=append, or the
cluster's own JobFileAppend=1.
srun and salloc jobs cannot be requeued, hence not be steered: only their comment is checked.
]]

-- Seconds a new job waits for the controller; 0 = off.
LEASE_S = 0
-- The same for a job that accepts some GPU types only: more than a round of the controller. If no controller has seen it
-- by then, Slurm starts it on any type.
TYPES_LEASE_S = 900

local PREFIX = "hadar:"
local MOST_BYTES = 2048 -- of a comment, and of a GPU request that is looked into
local BLANKS = " \t\n\r\v\f"
local KEY_ORDER = { "model", "batch", "steps", "gpus", "nodes", "mix", "graph", "types", "mem", "prefer", "ckpt", "lose", "pin",
    "weight", "deadline", "requeue_on_timeout", "max_time", "restart", "retry", "fork", "period", "share",
    "lease", "asked", "needs", "key" }
local SCHEDULERS = { "lease", "asked" } -- keys that no user writes
-- Only what srun takes empty for unset. An empty SLURM_NTASKS is an error to it, and no variable can be removed here:
-- the task counts are the TaskProlog's part. The step is that of a shell of srun's which sbatch was called in: with its
-- number the batch script would pass for a task of a step.
local STALE = { "SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_SOCKET", "SLURM_STEP_ID" }

-- ------------------------------------------------------------------------------------------------ reading the comment
-- The same grammar as slurm_hadar/comment/; a test compares the two.

-- Lua's patterns have no alternatives and no bounded repeats, so lengths are looked at apart.
local function is_name(text)
    return #text <= 64 and text:find("^[A-Za-z0-9][A-Za-z0-9._-]*$") ~= nil
end

local function is_number_up_to(text, digits)
    return #text <= digits and text:find("^[1-9][0-9]*$") ~= nil
end

local function name(text)
    return is_name(text) or nil, "must be letters, digits, '.', '_' or '-', at most 64"
end

local function positive_int(digits)
    return function(text)
        return is_number_up_to(text, digits) or nil,
            "must be a positive whole number of at most " .. digits .. " digits"
    end
end

local function positive_float(least, most)
    return function(text)
        local whole, fraction = text:match("^(%d+)(.*)$")
        local digits = fraction and fraction:match("^%.(%d+)$")
        local good = whole and #whole <= 12 and (fraction == "" or (digits and #digits <= 9))
        good = good and tonumber(text) >= least and tonumber(text) <= most
        return good or nil, string.format("must be a number from %g to %g", least, most)
    end
end

local function share(text)
    if text == "no" then return true end
    local good, wrong = positive_float(1.01, 100)(text)
    return good, wrong .. ", or no"
end

local function yes_no(text)
    return text == "yes" or text == "no" or nil, "must be yes or no"
end

local function names(text)
    for part in (text .. "+"):gmatch("([^+]*)%+") do
        if not is_name(part) then return nil, "must be GPU types joined by '+'" end
    end
    return true
end

local function gpus(text)
    local wrong = "must be a range or a list of at most 8 sizes joined by '+'"
    local low, high = text:match("^([^-]*)%-(.*)$")
    if low then
        local good = is_number_up_to(low, 4) and is_number_up_to(high, 4) and tonumber(high) >= tonumber(low)
        return good or nil, wrong
    end
    local count = 0
    for part in (text .. "+"):gmatch("([^+]*)%+") do
        count = count + 1
        if count > 8 or not is_number_up_to(part, 4) then return nil, wrong end
    end
    return true
end

local function memory(text)
    local number = text:match("^(%d+)[gG]$")
    return (number and is_number_up_to(number, 4)) or nil, "must be whole gigabytes of one GPU, at most 9999g"
end

local function nodes(text)
    local low, high = text:match("^(%d+)%-(%d+)$")
    low = low or text
    high = high or low
    local good = is_number_up_to(low, 5) and is_number_up_to(high, 5) and tonumber(high) >= tonumber(low)
    return good or nil, "must be a count or a range such as 1-4"
end

local function mix(text)
    return text == "never" or text == "gated" or text == "balanced" or nil, "must be one of never, gated, balanced"
end

local function asked(text)
    local workers, nodes, tasks, cpus, mac = text:match("^(%d+)/(%d+)/(%d+)/(%d+)(.*)$")
    local good = workers and (mac == "" or (#mac == 33 and mac:find("^/[0-9a-f]+$")))
    for _, number in ipairs({ workers, nodes, tasks, cpus }) do good = good and is_number_up_to(number, 9) end
    if not good then return nil, "must be four numbers (GPUs, nodes, tasks and CPUs) and 32 hexadecimal digits" end
    return tonumber(workers) % tonumber(nodes) == 0 or nil, "must be GPUs that its nodes share equally"
end

local function graph(text)
    local wrong = "must be a model with degrees pp, dp, tp, mb, each at most once, or a path ending in .toml"
    if text:find("%.toml$") then
        return (#text <= 255 and text:find("^[A-Za-z0-9._/+@-]+%.toml$") ~= nil) or nil, wrong
    end
    local model, degrees = text:match("^([^/]*)(.*)$")
    if not is_name(model) then return nil, wrong end
    local seen = { pp = false, dp = false, tp = false, mb = false }
    for degree in degrees:gmatch("/([^/]*)") do
        local kind, number = degree:sub(1, 2), degree:sub(3)
        if seen[kind] ~= false or not is_number_up_to(number, 4) then return nil, wrong end
        seen[kind] = true
    end
    return true
end

local function fork(text)
    return text == "idle" or text == "spread" or text == "auto" or nil, "must be one of idle, spread, auto"
end

local UNIT_S = { s = 1, m = 60, h = 3600, d = 86400 }

-- Seconds of a span such as 90m; nil and nothing if it is none, nil and the reason if it is too long.
local function span_s(text)
    if #text > 21 then return nil end -- ten digits, a point, nine digits, a unit
    local whole, fraction, unit = text:match("^(%d+)%.?(%d*)([smhd])$")
    local point = text:find(".", 1, true)
    if not whole or #whole > 10 or #fraction > 9 or (point ~= nil) ~= (fraction ~= "") then return nil end
    local seconds = tonumber(text:sub(1, -2)) * UNIT_S[unit]
    if seconds > 3650 * UNIT_S.d then return nil, "must not be longer than 3650d" end
    return seconds
end

local function period(text)
    if is_number_up_to(text, 15) then return true end
    local seconds, reason = span_s(text)
    return (seconds and seconds > 0) or nil, reason or "must be a number of steps such as 500 or a span such as 30s, 5m"
end

local function max_time(text)
    local seconds, reason = span_s(text)
    return (seconds and seconds > 0) or nil, reason or "must be a span such as 36h, 2d"
end

local function is_day(year, month, day)
    local days = { 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 }
    if year % 4 == 0 and (year % 100 ~= 0 or year % 400 == 0) then days[2] = 29 end
    return year >= 1970 and year < 3000 and month >= 1 and month <= 12 and day >= 1 and day <= days[month]
end

local function is_clock(text)
    local hour, minute, rest = text:match("^(%d%d):(%d%d)(.*)$")
    if not hour or tonumber(hour) > 23 or tonumber(minute) > 59 then return false end
    if rest == "" then return true end
    local second, fraction = rest:match("^:(%d%d)(.*)$")
    if not second or tonumber(second) > 59 then return false end
    local digits = fraction:match("^%.(%d+)$")
    return fraction == "" or (digits ~= nil and #digits <= 6)
end

local function deadline(text)
    local seconds, reason = span_s(text)
    if seconds or reason then return seconds ~= nil or nil, reason end
    local wrong = "must be a time such as 2026-11-20T18:00+00:00 or a span such as 6h, 90m, 2d"
    local year, month, day, rest = text:match("^(%d%d%d%d)%-(%d%d)%-(%d%d)T(.*)$")
    if not year or not is_day(tonumber(year), tonumber(month), tonumber(day)) then return nil, wrong end
    local clock, hour, minute = rest:match("^(.-)[+-](%d%d):(%d%d)$")
    if clock then
        if tonumber(hour) > 23 or tonumber(minute) > 59 then return nil, wrong end
    else
        clock = rest:match("^(.*)Z$")
    end
    if clock then return is_clock(clock) or nil, wrong end
    if is_clock(rest) then return nil, "must name the offset from UTC of a time (2026-11-20T18:00+00:00)" end
    return nil, wrong
end

local function needs(text)
    local persistent, ephemeral = text:match("^(%d+)%+(%d+)$")
    local good = persistent ~= nil and #persistent <= 9 and #ephemeral <= 9
    return good or nil, "must be two whole numbers of MiB, persistent and ephemeral memory"
end

local function hash(text)
    return #text == 16 and text:find("^[0-9a-f]+$") ~= nil or nil, "must be 16 hexadecimal digits"
end

local KEYS = {
    model = { name, "resnet18" },
    batch = { positive_int(15), "128" },
    steps = { positive_int(15), "200000" },
    gpus = { gpus, "2-8" },
    nodes = { nodes, "1-4" },
    mix = { mix, "gated" },
    graph = { graph, "gpt2-xl/pp4/dp2" },
    types = { names, "v100+p100" },
    mem = { memory, "32g" },
    prefer = { names, "v100" },
    ckpt = { yes_no, "yes" },
    lose = { yes_no, "no" },
    pin = { yes_no, "yes" },
    weight = { positive_float(0.001, 1000), "2" },
    deadline = { deadline, "6h" },
    requeue_on_timeout = { yes_no, "yes" },
    max_time = { max_time, "2d" },
    restart = { positive_float(0, 86400), "45" },
    retry = { positive_int(2), "2" },
    fork = { fork, "auto" },
    period = { period, "60s" },
    share = { share, "1.5" },
    lease = { positive_int(5), "10" },
    asked = { asked, "4/2/2/8/0123456789abcdef0123456789abcdef" },
    needs = { needs, "600+3000" },
    key = { hash, "0123456789abcdef" },
}

-- Without the blanks at its ends. In one pass: a pattern such as "%s+$" would be tried anew at each of them.
local function trimmed(text)
    local first = text:find("[^" .. BLANKS .. "]")
    if not first then return "" end
    local last = #text
    while BLANKS:find(text:sub(last, last), 1, true) do last = last - 1 end
    return text:sub(first, last)
end

local function too_long(comment)
    if #comment <= MOST_BYTES then return nil end
    return string.format("the hadar: comment has %d bytes; at most %d are read", #comment, MOST_BYTES)
end

-- The pairs of a comment, or nil and the reason why it cannot be read.
function hadar_parse(comment)
    if too_long(comment) then return nil, too_long(comment) end
    local body = trimmed(comment:sub(#PREFIX + 1))
    local found = {}
    if body == "" then return found end
    for pair in (body .. ","):gmatch("([^,]*),") do
        local key, value = pair:match("^([^=]*)=(.*)$")
        key = key or pair
        local rule = KEYS[key]
        if not rule then
            return nil, string.format("unknown key '%s' in the hadar: comment; valid keys: %s", key,
                table.concat(KEY_ORDER, ", "))
        end
        if not value or value == "" then
            return nil, string.format("key '%s' in the hadar: comment needs a value, such as %s=%s", key, key, rule[2])
        end
        if found[key] then return nil, string.format("key '%s' stands twice in the hadar: comment", key) end
        local good, reason = rule[1](value)
        if not good then
            return nil, string.format("%s=%s in the hadar: comment %s, such as %s=%s", key, value, reason, key, rule[2])
        end
        found[key] = value
    end
    return found
end

local function is_ours(comment)
    return type(comment) == "string" and comment:sub(1, #PREFIX) == PREFIX
end

-- ------------------------------------------------------------------------------------------------- GPUs without types

-- "gres:gpu:v100:2,gres:gpu:k80:1" -> "gres:gpu:3", and its types go into seen, in order. Other resources stay as
-- they are. Slurm writes gres: up to 22.05 and gres/ after it, and then = before the count of what is asked per task.
local function untype(text, seen)
    if #text > MOST_BYTES then return text end -- nobody means that: leave it to Slurm
    local parts, total, place, slash, sign = {}, 0, nil, nil, nil
    for part in (text .. ","):gmatch("([^,]*),") do
        local separator, rest = part:match("^gres([:/])gpu(.*)$")
        if not separator then rest = part:match("^gpu(.*)$") end
        if rest and (rest == "" or rest:find("^[:=]")) then
            local kind, before, count = rest:match("^:([^:=]*)([:=])(%d+)$")
            if not kind then
                before, count = rest:match("^([:=])(%d+)$")
                kind = not count and rest:match("^:([^:=]+)$") or nil
                if rest ~= "" and not count and not kind then return text end -- a form not known: leave it to Slurm
            end
            if kind and not seen[kind] then
                seen[kind] = true
                seen[#seen + 1] = kind
            end
            total = total + (tonumber(count) or 1)
            if not place then
                place = #parts + 1
                parts[place] = ""
                slash, sign = separator, before
            end
        else
            parts[#parts + 1] = part
        end
    end
    if not place then return text end
    parts[place] = (slash and "gres" .. slash or "") .. "gpu" .. (sign or ":") .. total
    return table.concat(parts, ",")
end

-- Everything to change in a batch job, worked out before anything is touched: a failure half-way changes nothing.
local function plan(job, pairs_)
    local seen, changes = {}, {}
    for _, field in ipairs({ "tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket" }) do
        local text = job[field]
        if text and text ~= "" then
            local new = untype(text, seen)
            if new ~= text then changes[field] = new end
        end
    end
    local whole = changes.tres_per_job or job.tres_per_job
    if whole and #whole <= MOST_BYTES and whole:find("^gres[:/]gpu:%d+$") and job.min_nodes == 1 and job.max_nodes == 1
        and (job.tres_per_node or "") == "" then
        changes.tres_per_job = ""
        changes.tres_per_node = whole
    end
    local added = {}
    if #seen > 0 and not pairs_.prefer and names(table.concat(seen, "+")) then
        table.insert(added, "prefer=" .. table.concat(seen, "+"))
    end
    changes.requeue = 1
    local lease = math.max(LEASE_S, (pairs_.types or pairs_.mem) and TYPES_LEASE_S or 0)
    if lease > 0 and (job.begin_time or 0) < os.time() + lease then
        changes.begin_time = os.time() + lease
        -- tells the controller that the begin time is not the owner's
        if (job.begin_time or 0) <= os.time() and not pairs_.lease then table.insert(added, "lease=" .. lease) end
    end
    if #added > 0 then
        changes.comment = trimmed(job.comment) .. (next(pairs_) and "," or "") .. table.concat(added, ",")
    end
    return changes, #seen > 0 and table.concat(seen, "+") or nil
end

-- What its own time limit means to a job whose owner has not said what shall happen there. Slurm's marks for "none" are
-- the largest numbers.
local function warn_of_limit(job, found)
    local minutes = tonumber(job.time_limit)
    if not minutes or minutes < 1 or minutes >= 4294967294 or found.requeue_on_timeout then return end
    slurm.log_user("hadar: at its limit of %d min this job saves if it can, and ends; with requeue_on_timeout=yes in its " ..
        "comment it goes on in another run (requeue_on_timeout=no: not this line)", minutes)
end

-- "Hadar:model=x" or "hadar,model=x": meant for the scheduler, and not read by it.
local function warn_of_near_miss(comment)
    local head = type(comment) == "string" and comment:sub(1, 32):lower():match("^%s*hadar(.?)")
    if head and head:find("^%w") == nil then
        slurm.log_user("hadar: this job is not steered, since its comment does not begin with hadar: (small letters, a colon)")
    end
end

-- The GPU types of the nodes in a slurm.conf and what it includes, as a set; nil where nodes may come that it does not
-- name, or where it cannot be read.
function hadar_gpu_types(path, found, depth)
    found, depth = found or {}, depth or 1
    local file = io.open(path, "r")
    if not file then return nil end
    local text = file:read("*a"):gsub("\\\r?\n", " ")
    file:close()
    for line in text:gmatch("[^\r\n]+") do
        line = line:gsub("#.*", "")
        local lower = line:lower()
        local included = lower:find("^%s*include%s") and line:match("^%s*%S+%s+(%S+)")
        if included then
            if included:sub(1, 1) ~= "/" then included = (path:match("^.*/") or "") .. included end
            if depth >= 4 or not hadar_gpu_types(included, found, depth + 1) then return nil end
        elseif lower:find("^%s*maxnodecount=") then
            return nil
        elseif lower:find("^%s*nodename=") then
            local gres = line:match("[%s][Gg][Rr][Ee][Ss]=(%S+)") or ""
            for rest in gres:gsub("[\"']", ""):gmatch("gpu:([^,(]+)") do
                local kind = rest:match("^([^:]+):") or (not is_number_up_to(rest, 9) and rest) -- 3090:4 has a type, 4 none
                if kind then found[kind] = true end
            end
        end
    end
    return found
end

GPU_TYPES = hadar_gpu_types(os.getenv("SLURM_CONF") or "/etc/slurm/slurm.conf")

-- Types that the job names and no node has: with types= it waits for ever, with prefer= it has wished for nothing.
local function warn_of_types(found, wished)
    if not GPU_TYPES or not next(GPU_TYPES) then return end
    local function unknown(text)
        local strange, any = {}, false
        for kind in (text .. "+"):gmatch("([^+]+)%+") do
            if GPU_TYPES[kind] then any = true elseif #strange < 4 then strange[#strange + 1] = kind end
        end
        return #strange > 0 and table.concat(strange, ", ") or nil, any
    end
    local there = {}
    for kind in pairs(GPU_TYPES) do there[#there + 1] = kind end
    table.sort(there)
    local known = table.concat(there, ", "):sub(1, 200)
    for key, text in pairs({ types = found.types, prefer = found.prefer or wished }) do
        local strange, any = unknown(text)
        if strange and key == "types" and not any then
            slurm.log_user("hadar: no node here has GPU type %s, so this job waits until one has; there are: %s", strange, known)
        elseif strange then
            slurm.log_user("hadar: no node here has GPU type %s, which %s= names; there are: %s", strange, key, known)
        end
    end
end

-- Slurm's marks for "none" are the largest numbers.
local function asks_for_tasks(job)
    local total = tonumber(job.num_tasks) or 0
    if total > 0 and total < 4294967294 then return true end
    for _, field in ipairs({ "ntasks_per_node", "ntasks_per_socket" }) do -- which 24.11 does not add up
        local each = tonumber(job[field]) or 0
        if each > 0 and each < 65534 then return true end
    end
    return false
end

local function submit(job)
    local environment = job.environment
    if not is_ours(job.comment) then
        warn_of_near_miss(job.comment)
        -- submitted from inside a hadar job: the mark it inherited is not its own
        if environment and environment["HADAR_MANAGED"] then environment["HADAR_MANAGED"] = "" end
        return true
    end
    local found, reason = hadar_parse(job.comment)
    if not found then return false, reason end
    for _, key in ipairs(SCHEDULERS) do
        if found[key] then return false, key .. "= in the hadar: comment is for the scheduler to write; leave it out" end
    end
    if not job.script or job.script == "" or found.pin == "yes" then return true end
    if job.req_nodes and job.req_nodes ~= "" then
        return false, "--nodelist nails a hadar: job to those nodes; leave it out, or add pin=yes to the comment to be " ..
            "left alone; types=v100 limits a job to GPU types"
    end
    local changes, wished = plan(job, found)
    if too_long(changes.comment or "") then return false, too_long(changes.comment) .. "; some are added to it here" end
    for field, value in pairs(changes) do job[field] = value end
    warn_of_limit(job, found)
    warn_of_types(found, wished)
    if environment then
        for _, variable in ipairs(STALE) do
            if environment[variable] then environment[variable] = "" end
        end
        local per_task = environment["SLURM_GPUS_PER_TASK"]
        if per_task then environment["SLURM_GPUS_PER_TASK"] = per_task:sub(-9):match("%d+$") or "1" end
        local tres = environment["SLURM_TRES_PER_TASK"]
        if tres then environment["SLURM_TRES_PER_TASK"] = untype(tres, {}) end
        environment["HADAR_MANAGED"] = "1"
        local inherited = environment["SLURM_NTASKS"] and not asks_for_tasks(job)
        if inherited or environment["HADAR_NO_TASKS"] then environment["HADAR_NO_TASKS"] = inherited and "1" or "" end
    end
    return true
end

-- What the scheduler writes stays as it stands, but for root. A sealed asked= passes from anybody: the controller may
-- be an Operator, whom nothing here tells from a user, and to a seal that is not its own it gives nothing.
local function modify(change, record, uid)
    if not is_ours(change.comment) then return true end
    local found, reason = hadar_parse(change.comment)
    if not found then return false, reason end
    local present = is_ours(record.comment) and hadar_parse(record.comment) or {}
    for _, key in ipairs(SCHEDULERS) do
        local new = found[key] ~= nil and found[key] ~= present[key]
        local sealed = key == "asked" and new and #found.asked:match("[^/]*$") == 32
        if new and not sealed and uid ~= 0 then
            return false, key .. "= in the hadar: comment is for the scheduler to write; leave it as it was"
        end
    end
    return true
end

-- Runs step(...); whatever goes wrong inside it must cost nobody a job.
local function guarded(what, tell, step, ...)
    local worked, accepted, reason = pcall(step, ...)
    if not worked then
        slurm.log_error("hadar: %s let a job pass unchecked: %s", what, tostring(accepted))
        return slurm.SUCCESS
    end
    if accepted then return slurm.SUCCESS end
    tell("hadar: %s", reason)
    return slurm.ERROR
end

function slurm_job_submit(job_desc, _part_list, _submit_uid)
    return guarded("slurm_job_submit", slurm.log_user, submit, job_desc)
end

function slurm_job_modify(job_desc, job_rec, _part_list, modify_uid)
    -- Slurm 22.05 cannot show a message for an update: scontrol says "Unspecified error", the reason is in slurmctld's log
    return guarded("slurm_job_modify", slurm.log_info, modify, job_desc, job_rec, modify_uid)
end

return slurm.SUCCESS
