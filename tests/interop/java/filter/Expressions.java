import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.common.filter.ExpressionType;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.expression.MQFilterException;

/**
 * RocketMQ's own SQL92 expressions. Without arguments it reads one expression per line,
 * {@code {"expression": text, "messages": [properties, …]}}, and writes one line for each: one
 * letter per message, T(rue), F(alse), N(ull) or E(rror), or {@code !} if the expression does not
 * compile. With the arguments {@code bench seconds} it reads one such line, whose messages are
 * property strings, and writes the messages evaluated, those that match, and the nanoseconds of
 * processor time of this process, after as long a warm-up.
 */
public final class Expressions {
    private Expressions() {
    }

    public static void main(String[] args) throws Exception {
        BufferedReader lines =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        if (args.length > 0) {
            bench(JSONObject.parseObject(lines.readLine()), Double.parseDouble(args[1]), out);
        } else {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                JSONObject asked = JSONObject.parseObject(line);
                out.println(values(asked.getString("expression"), asked.getJSONArray("messages")));
            }
        }
        out.flush();
    }

    private static Expression compile(String text) throws MQFilterException {
        return FilterFactory.INSTANCE.get(ExpressionType.SQL92).compile(text);
    }

    private static String values(String text, JSONArray messages) {
        Expression expression;
        try {
            expression = compile(text);
        } catch (MQFilterException error) {
            return "!";
        }
        StringBuilder values = new StringBuilder();
        for (Object message : messages) {
            Map<String, String> properties = new LinkedHashMap<>();
            ((JSONObject) message).forEach((name, value) -> properties.put(name, (String) value));
            values.append(value(expression, properties));
        }
        return values.toString();
    }

    private static char value(Expression expression, Map<String, String> properties) {
        try {
            Object value = expression.evaluate(new MessageEvaluationContext(properties));
            return value == null ? 'N' : (Boolean) value ? 'T' : 'F';
        } catch (Throwable error) {
            return 'E';
        }
    }

    /** What a broker does for each message: the properties out of the record, then the value. */
    private static void bench(JSONObject asked, double seconds, PrintStream out) throws Exception {
        Expression expression = compile(asked.getString("expression"));
        JSONArray texts = asked.getJSONArray("messages");
        byte[][] records = new byte[texts.size()][];
        for (int i = 0; i < records.length; i++) {
            records[i] = texts.getString(i).getBytes(StandardCharsets.UTF_8);
        }
        run(expression, records, seconds);
        long[] figures = run(expression, records, seconds);
        out.println(figures[0] + " " + figures[1] + " " + figures[2]);
    }

    private static long[] run(Expression expression, byte[][] records, double seconds) {
        long end = System.nanoTime() + (long) (seconds * 1e9);
        OperatingSystemMXBean system =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        long began = system.getProcessCpuTime();
        long messages = 0;
        long matches = 0;
        while (System.nanoTime() < end) {
            for (byte[] record : records) {
                Map<String, String> properties = MessageDecoder.string2messageProperties(
                    new String(record, StandardCharsets.UTF_8));
                if (value(expression, properties) == 'T') {
                    matches++;
                }
            }
            messages += records.length;
        }
        long spent = system.getProcessCpuTime() - began;
        return new long[] {messages, matches, spent};
    }
}
