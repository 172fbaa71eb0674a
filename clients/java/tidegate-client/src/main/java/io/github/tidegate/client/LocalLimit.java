package io.github.tidegate.client;

import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The part of a limit that the local share needs, read from the notation of Tidegate.
 *
 * @param capacity the most that is granted at once
 * @param recoveryNanos the time in which all of it recovers
 */
record LocalLimit(long capacity, double recoveryNanos) {
    private static final Pattern NOTATION =
        Pattern.compile("(?:([a-z-]+) )?(\\d{1,16})/(\\d{0,9})([a-z]+)((?: \\S+)*)");
    private static final Pattern CAPACITY = Pattern.compile(" (?:burst|capacity) (\\d{1,16})");
    private static final Map<String, Double> UNITS = Map.ofEntries(
        Map.entry("us", 1e3), Map.entry("ms", 1e6),
        Map.entry("s", 1e9), Map.entry("sec", 1e9),
        Map.entry("m", 60e9), Map.entry("min", 60e9), Map.entry("minute", 60e9),
        Map.entry("h", 3600e9), Map.entry("hour", 3600e9),
        Map.entry("d", 86400e9), Map.entry("day", 86400e9),
        Map.entry("w", 7 * 86400e9), Map.entry("week", 7 * 86400e9),
        // The longest month: a local count never recovers earlier than the server's.
        Map.entry("month", 31 * 86400e9));

    /** The limit in this notation; null if it is invalid or counts concurrency. */
    static LocalLimit parse(String notation) {
        Matcher match = NOTATION.matcher(notation.trim());
        if (!match.matches() || "concurrency".equals(match.group(1))) {
            return null;
        }
        Double unit = UNITS.get(match.group(4));
        if (unit == null && match.group(4).endsWith("s")) {
            unit = UNITS.get(match.group(4).substring(0, match.group(4).length() - 1));
        }
        if (unit == null) {
            return null;
        }
        long count = Long.parseLong(match.group(2));
        double span = unit * (match.group(3).isEmpty() ? 1 : Long.parseLong(match.group(3)));
        Matcher option = CAPACITY.matcher(match.group(5));
        if (count == 0 || !option.find()) {
            return new LocalLimit(count, span);
        }
        long capacity = Long.parseLong(option.group(1));
        return new LocalLimit(capacity, span * capacity / count);
    }
}
