import io.github.bucket4j.Bandwidth;
import io.github.bucket4j.Bucket;
import io.github.bucket4j.TimeMeter;
import java.time.Duration;

/** Runs Bucket4j on the traffic of the other token buckets: one request, a pause, then as many as pass. */
public class Bucket4jPeer {
    static final int LIMIT = 100;

    public static void main(String[] args) {
        int worst = 0;
        for (long pause = 0; pause < 2_000_000_000L; pause += 1_000_000) {
            Clock clock = new Clock();
            Bandwidth limit = Bandwidth.builder().capacity(LIMIT).refillGreedy(LIMIT, Duration.ofSeconds(1)).build();
            Bucket bucket = Bucket.builder().addLimit(limit).withCustomTimePrecision(clock).build();
            bucket.tryConsume(1);
            clock.nanos += pause;
            worst = Math.max(worst, (int) bucket.tryConsumeAsMuchAsPossible());
        }
        String traffic = "a token bucket: one request, a pause, then as many as pass";
        System.out.println("| Bucket4j | " + traffic + " | " + worst + " | " + LIMIT + " |");
    }

    static final class Clock implements TimeMeter {
        long nanos = 1;

        @Override
        public long currentTimeNanos() {
            return nanos;
        }

        @Override
        public boolean isWallClockBased() {
            return true;
        }
    }
}
