package io.github.tidegate.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;

import io.github.tidegate.testing.ServerProcess;
import java.nio.file.Files;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.TestFactory;

/** The table of cases that all clients share, over HTTP and with checks over RESP. */
class CasesTest {
    private static final Set<String> RANGE = Set.of("from", "to");

    @AfterEach
    void close() {
        CaseRunner.closeShared();
    }

    @TestFactory
    Stream<DynamicTest> every_shared_case_holds_over_http() throws Exception {
        return cases(false);
    }

    @TestFactory
    Stream<DynamicTest> every_shared_case_holds_with_checks_over_resp() throws Exception {
        return cases(true);
    }

    private static Stream<DynamicTest> cases(boolean overResp) throws Exception {
        byte[] table = Files.readAllBytes(ServerProcess.repositoryFile("clients/cases.json"));
        List<Map<String, Object>> cases = Json.objects(Json.parseObject(table), "cases");
        assertFalse(cases.isEmpty());
        return cases.stream().map(one -> DynamicTest.dynamicTest(Json.text(one, "name"), () -> {
            try (CaseRunner runner = new CaseRunner(one, overResp)) {
                for (Map<String, Object> step : Json.objects(one, "steps")) {
                    runner.run(step);
                }
            }
        }));
    }

    /** Compares a result with the fields that it must have. */
    static void compare(String at, Object expected, Object actual) {
        if (expected instanceof Map<?, ?> fields && fields.keySet().equals(RANGE)) {
            assertNotNull(actual, at);
            long value = (Long) actual;
            assertFalse(value < (Long) fields.get("from") || value > (Long) fields.get("to"),
                () -> at + " is " + value + ", not within " + fields);
        } else if (expected instanceof Map<?, ?> fields) {
            fields.forEach((name, value) ->
                compare(at + "." + name, value, ((Map<?, ?>) actual).get(name)));
        } else if (expected instanceof List<?> items) {
            assertEquals(items.size(), ((List<?>) actual).size(), at);
            for (int i = 0; i < items.size(); i++) {
                compare(at + "[" + i + "]", items.get(i), ((List<?>) actual).get(i));
            }
        } else {
            assertEquals(expected, actual, at);
        }
    }
}
